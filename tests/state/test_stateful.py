"""A stateful stage in a query: what is stored, what is emitted, and what a restart makes of it."""

from __future__ import annotations

import json
import random
import threading
from collections import defaultdict
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import sparkguard as sg
from sparkguard.errors import ConfigError, StageError
from sparkguard.testing import states
from tests.spark.made import ROW, build, committed, guard, kafka_stream, letters

PROVIDER = "spark.sql.streaming.stateStore.providerClass"
ROCKS = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


class Done(msgspec.Struct):
    """A task of an execution is done."""

    execution: str | None
    seq: int
    task: str


class Execution(msgspec.Struct):
    """What is known of an execution."""

    tasks: list[str] = []


class Report(msgspec.Struct):
    """What is told of it."""

    execution: str
    version: int
    last: str


decode = sg.deserialize(sg.Json(Done), name="decode")


@sg.stateful(key="execution", state=Execution, sequence="seq")
def advance(state: Execution | None, event: Done) -> sg.Update[Execution, Report]:
    """Changes the state in place before it looks whether it may."""
    state = state or Execution()
    state.tasks.append(event.task)
    if event.task.startswith("bad"):
        raise ValueError(f"{event.task} is bad")
    return sg.Update(state=state, emit=[Report(str(event.execution), len(state.tasks), event.task)])


@pytest.fixture(autouse=True)
def _rocks(spark: SparkSession) -> Iterator[None]:
    spark.conf.set(PROVIDER, ROCKS)
    yield
    spark.conf.unset(PROVIDER)


def events(seed: int) -> list[list[str]]:
    """Two batches: events of four executions in no order, some bad, some twice, two no events."""
    rng = random.Random(seed)
    batches = []
    for number in range(2):
        made = [
            {
                "execution": f"e{seq % 4}",
                "seq": seq,
                "task": f"{'bad' if seq % 7 == 3 else 't'}{seq}",
            }
            for seq in range(number * 30, number * 30 + 30)
        ]
        made += rng.sample(made, 5)
        made.append({"execution": None, "seq": number, "task": "nobody's"})
        rng.shuffle(made)
        batches.append([json.dumps(one) for one in made])
    return batches


def expected() -> dict[str, list[str]]:
    """What is merged if one event after the other is."""
    found: dict[str, list[str]] = defaultdict(list)
    for seq in range(60):
        if seq % 7 != 3:
            found[f"e{seq % 4}"].append(f"t{seq}")
    return found


def run(
    spark: SparkSession, folder: Path, source: DataFrame, fails_at: int | None = None
) -> tuple[sg.Guard, list[Any]]:
    """Run the query to its end; the guard, and each batch that was written."""
    made, written = guard(folder), []

    @sg.foreach_batch
    def write(batch: DataFrame, batch_id: int) -> None:
        rows = [tuple(row) for row in batch.collect()]
        if batch_id == fails_at:
            raise RuntimeError("the sink is gone")
        written.append((batch_id, rows))

    flow = made.flow(decode, name="read", carry=sg.ORIGIN)
    guarded = source.transform(flow).transform(made.stateful(advance))
    query = (
        guarded.writeStream.foreachBatch(made.foreach_batch(write))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
    )
    if fails_at is None:
        made.run(query.start)
    else:
        with pytest.raises(StreamingQueryException):
            query.start().awaitTermination()
    return made, written


def test_state_never_goes_backwards(spark: SparkSession, tmp_path: Path) -> None:
    """P1, P4, P6: over a restart in the middle every good event is merged once, in its order.

    Rebuilt with a fresh checkpoint, in other batches: the same states and the same letters.
    """
    source = kafka_stream(spark, tmp_path, *events(7))
    _, before = run(spark, tmp_path, source, fails_at=1)
    assert [number for number, _ in before] == [0]
    made, after = run(spark, tmp_path, source)

    assert [number for number, _ in after] == [1]
    told: dict[str, list[str]] = defaultdict(list)
    for _, rows in before + after:
        for execution, version, task in rows:
            told[execution].append(task)
            assert version == len(told[execution])
    assert told == expected()
    stored = states(spark, str(tmp_path / "checkpoint"), Execution)
    assert {key: one.state.tasks for key, one in stored.items()} == expected()
    assert {key: one.version for key, one in stored.items()} == {
        key: len(tasks) for key, tasks in expected().items()
    }

    total = made.ledger.total("advance")
    assert total.balanced
    assert total.records_in == 2 * 36
    assert total.records_out == sum(map(len, expected().values()))
    left = letters(tmp_path)
    bad = [one.failure for one in left if one.failure.exception_type == "ValueError"]
    assert {one.message for one in bad} == {f"bad{n} is bad" for n in range(60) if n % 7 == 3}
    for one in bad:
        seq = int(one.message.partition(" ")[0].removeprefix("bad"))
        earlier = [task for task in expected()[one.state_key] if int(task[1:]) < seq]
        assert one.state_version == len(earlier)
        assert (json.loads(one.state)["tasks"] if one.state else []) == earlier
        assert one.record.topic == "orders"
    nobodys = [one for one in left if one.failure.exception_type.endswith("NoKeyError")]
    assert len(nobodys) == 2

    again = tmp_path / "again"
    run(spark, again, spark.readStream.schema(ROW).parquet(str(tmp_path / "in")).repartition(3))
    rebuilt = states(spark, str(again / "checkpoint"), Execution)
    assert rebuilt == stored
    assert {one.id for one in letters(again)} == {one.id for one in left}


def test_a_letter_that_cannot_be_stored_stops_the_batch(
    spark: SparkSession, tmp_path: Path
) -> None:
    """P2, P4: no state is changed then; and what two actions evaluate is one account."""
    made = guard(tmp_path)
    values = [msgspec.json.encode(Done("e", n, "bad" if n == 1 else f"t{n}")) for n in range(3)]
    source = kafka_stream(spark, tmp_path, [value.decode() for value in values])
    guarded = source.transform(made.flow(decode, name="read", carry=sg.ORIGIN)).transform(
        made.stateful(advance)
    )
    evaluated: list[int] = []

    @sg.foreach_batch
    def twice(batch: DataFrame, batch_id: int) -> None:
        evaluated.extend((batch.count(), batch.count()))

    def start() -> StreamingQuery:
        return build(guarded, tmp_path, made.foreach_batch(twice))()

    (tmp_path / "dead").rmdir()
    (tmp_path / "dead").write_text("no folder")
    with pytest.raises(StreamingQueryException, match="Sink 'default'"):
        start().awaitTermination()
    assert (committed(tmp_path), evaluated) == ([], [])

    (tmp_path / "dead").unlink()
    start().awaitTermination()
    assert evaluated == [2, 2]
    stored = states(spark, str(tmp_path / "checkpoint"), Execution)
    assert stored["e"].state.tasks == ["t0", "t2"]
    assert [one.failure.message for one in letters(tmp_path)] == ["bad is bad"]
    total = made.ledger.total("advance")
    assert (total.records_in, total.records_out, total.balanced) == (3, 2, True)


def test_a_timer_and_an_event_that_never_comes(spark: SparkSession, tmp_path: Path) -> None:
    """The timer's update is stored and emitted with no event; its key's state is then forgotten."""

    def late(state: Execution | None, now: datetime) -> sg.Update[Execution, Report]:
        return sg.Update(state=None, emit=[Report("", len(state.tasks) if state else 0, "late")])

    @sg.stateful(key="execution", state=Execution, on_timer=late, ttl=timedelta(hours=1))
    def begin(state: Execution | None, event: Done) -> sg.Update[Execution, Report]:
        state = state or Execution()
        state.tasks.append(event.task)
        return sg.Update(state=state, timer=timedelta(milliseconds=100))

    made, ended = guard(tmp_path), threading.Event()
    seen: list[Any] = []

    def write(batch: DataFrame, batch_id: int) -> None:
        if len(seen) >= 2:  # with the next batch, the one before is committed
            ended.set()
        seen.extend(tuple(row) for row in batch.collect())

    values = [json.dumps({"execution": one, "seq": 1, "task": "t"}) for one in "aab"]
    source = kafka_stream(spark, tmp_path, values)
    flow = made.flow(decode, name="read", carry=sg.ORIGIN)
    query = (
        source.transform(flow)
        .transform(made.stateful(begin))
        .writeStream.foreachBatch(made.foreach_batch(sg.foreach_batch(write)))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    assert ended.wait(120), query.exception()
    query.stop()

    assert sorted(seen) == [("", 1, "late"), ("", 2, "late")]
    assert states(spark, str(tmp_path / "checkpoint"), Execution) == {}
    assert made.ledger.total("begin").balanced


def test_what_cannot_be_is_said_before_the_query_starts(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A frame, a session or a changed type that would fail later: a sentence, and no query."""
    made = guard(tmp_path)
    stream = spark.readStream.schema("execution string, seq long, task string, at double").parquet(
        str(tmp_path)
    )
    stateful = made.stateful(advance)
    with pytest.raises(StageError, match="needs a stream"):
        stateful(spark.createDataFrame([("e", 1, "t")], "execution string, seq long, task string"))
    with pytest.raises(StageError, match="takes the column 'seq', which the frame has not"):
        stateful(stream.select("execution", "task"))
    with pytest.raises(StageError, match="'seq' is double and must be a whole number"):
        stateful(stream.select("execution", "task", stream["at"].alias("seq")))
    assert stateful(stream).columns == ["execution", "version", "last"]

    def changed(kind: Any) -> Any:
        declared = sg.stateful(key="execution", state=kind, returns=Report, name="advance")
        return guard(tmp_path).stateful(declared(lambda state, event: None))

    more = msgspec.defstruct("More", [("tasks", list[str]), ("note", str, "")])
    assert changed(more)(stream).isStreaming
    other = msgspec.defstruct("Other", [("tasks", list[str]), ("owner", str)])
    with pytest.raises(ConfigError, match="field 'owner' was not there"):
        changed(other)(stream)
    other = msgspec.defstruct("Other", [("tasks", list[int])])
    with pytest.raises(ConfigError, match=r"field 'tasks\[\]' was string, and is now integer"):
        changed(other)(stream)

    spark.conf.unset(PROVIDER)
    with pytest.raises(ConfigError, match=rf"spark.conf.set\('{PROVIDER}', '{ROCKS}'\)"):
        stateful(stream)
