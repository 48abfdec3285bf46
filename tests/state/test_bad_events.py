"""What a stateful stage meets in a real query: bad keys, huge ones, busy ones, forgotten ones."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

import sparkguard as sg
from sparkguard.testing import states
from tests.spark.made import build, guard, kafka_stream, letters
from tests.state.test_stateful import PROVIDER, ROCKS, decode

LOWEST, HIGHEST = -(2**63), 2**63 - 1


class Task(msgspec.Struct):
    """An event."""

    execution: str | None
    seq: int
    task: str


class Count(msgspec.Struct):
    """A state."""

    events: int = 0
    last: int = 0


class Told(msgspec.Struct):
    """What is told of it."""

    execution: str
    events: int
    last: int


def count(state: Count | None, event: Task) -> sg.Update[Count, Told]:
    """Counts, and cannot bear bad ones."""
    if event.task == "bad":
        raise ValueError("bad")
    events = state.events + 1 if state else 1
    key = str(event.execution)[:5]
    return sg.Update(state=Count(events, event.seq), emit=[Told(key, events, event.seq)])


NO_DATA = "spark.sql.streaming.noDataMicroBatches.enabled"


@pytest.fixture(autouse=True)
def _conf(spark: SparkSession) -> Iterator[None]:
    spark.conf.set(PROVIDER, ROCKS)
    # A stage that looks at the clock would have Spark run batch after batch.
    spark.conf.set(NO_DATA, "false")
    yield
    spark.conf.unset(PROVIDER)
    spark.conf.unset(NO_DATA)


def run(guarded: DataFrame, folder: Path, made: sg.Guard) -> list[Any]:
    """Run the query over all there is; what it emits, in the order of its batches."""
    told: list[Any] = []

    @sg.foreach_batch
    def write(batch: DataFrame, batch_id: int) -> None:
        told.extend(sorted((batch_id, *row) for row in batch.collect()))

    made.run(build(guarded, folder, made.foreach_batch(write)))
    return told


def test_keys_of_every_kind(spark: SparkSession, tmp_path: Path) -> None:
    """P1: none, no text, 1 MB; 10,000 events of one key; numbers at both ends: in one batch."""
    long = b"x" * 2**20
    rows: list[tuple[bytes | None, int, str]] = [(b"hot", n, "fine") for n in range(10_000)]
    rows[5_000] = (b"hot", 5_000, "bad")
    rows += [(None, 1, "a"), (None, 2, "b"), (b"\xff\xfe", 1, "c")]
    rows += [(long, 1, "fine"), (long, 2, "fine"), (long, 3, "bad")]
    rows += [(b"ends", number, "fine") for number in (LOWEST, HIGHEST, LOWEST)]
    random.Random(7).shuffle(rows)
    kinds = pa.schema([("execution", pa.binary()), ("seq", pa.int64()), ("task", pa.string())])
    columns = [
        pa.array(one, kind.type) for one, kind in zip(zip(*rows, strict=True), kinds, strict=True)
    ]
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table(columns, kinds), tmp_path / "in" / "1.parquet")
    source = spark.readStream.schema("execution binary, seq long, task string")
    frame = source.parquet(str(tmp_path / "in"))
    made = guard(tmp_path)
    declared = sg.stateful(key="execution", state=Count, sequence="seq")(count)

    text = frame.selectExpr("cast(execution as string) as execution", "seq", "task")
    told = run(text.transform(made.stateful(declared)), tmp_path, made)

    assert len(told) == 9_999 + 2 + 2
    assert sorted(one[2] for one in told if one[1] == "hot") == list(range(1, 10_000))
    found = states(spark, str(tmp_path / "checkpoint"), Count)
    assert {key[:5]: (len(key), tuple(one)) for key, one in found.items()} == {
        "hot": (3, (9_999, Count(9_999, 9_999), 0)),
        "xxxxx": (2**20, (2, Count(2, 2), 0)),
        "ends": (4, (2, Count(2, HIGHEST), 0)),
    }
    left = [one.failure for one in letters(tmp_path)]
    assert Counter(one.exception_type.rpartition(".")[2] for one in left) == Counter(
        NoKeyError=3, ValueError=2
    )
    bad = {
        one.state_key[:5]: one.state_version for one in left if one.exception_type == "ValueError"
    }
    assert bad == {"hot": 5_000, "xxxxx": 2}
    total = made.ledger.total("count")
    assert total.balanced
    assert (total.records_in, total.records_out) == (len(rows), len(told))
    assert total.stages["count"]["repeated"] == 1


def as_json(*events: tuple[str, int, str]) -> Sequence[str]:
    """Events as records."""
    return [json.dumps({"execution": e, "seq": n, "task": task}) for e, n, task in events]


def test_a_state_is_forgotten_and_what_waited_is_not(spark: SparkSession, tmp_path: Path) -> None:
    """P1: after its `ttl` a key begins with version 1; what waited for others is a letter.

    The states are forgotten between the batches, before anyone has decided about what waits.
    """
    brief = timedelta(milliseconds=1)
    declared = sg.stateful(
        key="execution", state=Count, sequence="seq", first=1, ttl=brief, gap_timeout=brief
    )(count)
    made = guard(tmp_path)
    source = kafka_stream(
        spark,
        tmp_path,
        as_json(("e", 1, "a"), ("e", 2, "b"), ("f", 1, "a"), ("g", 1, "a"), ("g", 3, "c")),
        as_json(("e", 1, "late"), ("f", 1, "bad")),
    )
    flow = made.flow(decode, name="read", carry=sg.ORIGIN)
    guarded = source.transform(flow).transform(made.stateful(declared))

    told = run(guarded, tmp_path, made)

    assert told == [
        (0, "e", 1, 1),
        (0, "e", 2, 2),
        (0, "f", 1, 1),
        (0, "g", 1, 1),
        (1, "e", 1, 1),
    ]
    left = {one.failure.state_key: one.failure for one in letters(tmp_path)}
    assert set(left) == {"f", "g"}
    assert (left["f"].message, left["f"].state_version, left["f"].state) == ("bad", 0, "")
    assert left["g"].exception_type == "sparkguard.errors.GapError"
    assert "did not come in time" in left["g"].message
    total = made.ledger.total("count")
    assert total.balanced
    assert (total.records_in, total.records_out) == (7, 5)
