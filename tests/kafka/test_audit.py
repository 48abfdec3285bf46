"""The audit of a pipeline over a real broker: offsets, letters and output, place by place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter
from typer.testing import CliRunner, Result

import sparkguard as sg
from sparkguard.audit.check import Audit
from sparkguard.audit.outputs import OutputTopic
from sparkguard.cli import app
from tests.conftest import MakeTopic
from tests.kafka.test_journey import decode, price
from tests.support.kafka import Broker, Message

COUNT = 3_000
COORDINATES = ["topic", "partition", "offset"]
SETTINGS = """
app: audited
state: {{path: {folder}/state}}
sinks: {{default: {{type: file, path: {folder}/dead}}}}
stages: {{send: {{handler: dead_letter}}}}
"""


def orders() -> list[Message]:
    """Orders of which every 100th does not parse, and every 250th breaks the rule."""
    return [
        Message(
            value=b"{"
            if n % 100 == 0
            else b'{"id": %d, "amount": %d}' % (n, -1 if n % 250 == 1 else 1),
            partition=n % 3,
        )
        for n in range(COUNT)
    ]


@sg.filter
def worth_it(priced: object) -> bool:
    """Few are not."""
    return priced.id % 301 != 7  # type: ignore[attr-defined, no-any-return]


def key_of(row: dict[str, Any]) -> str:
    """The key of a message; some rows have none that can be made."""
    if row["id"] % 500 == 3:
        raise ValueError("no key for this one")
    return str(row["id"])


def read(spark: SparkSession, servers: str, topic: str) -> DataFrame:
    """The orders as a stream, in two batches."""
    return (
        spark.readStream.format("kafka")
        .options(subscribe=topic, startingOffsets="earliest", includeHeaders="true")
        .option("kafka.bootstrap.servers", servers)
        .option("maxOffsetsPerTrigger", "2000")
        .load()
    )


def started(writer: DataStreamWriter, checkpoint: Path) -> StreamingQuery:
    """The query over everything there is."""
    return writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()


def audit(folder: Path, *more: str) -> Result:
    """`sparkguard audit`, as a person would call it."""
    where = [f"--config={folder}/guard.yaml", f"--checkpoint={folder}/checkpoint"]
    return CliRunner().invoke(app, ["audit", *where, f"--output={folder}/out", "--json", *more])


def places(done: Result) -> list[str]:
    """The coordinates that it names."""
    return [place for check in json.loads(done.stdout)["checks"] for place in check["places"]]


def offsets(done: Result, partition: str) -> set[int]:
    """The offsets that it names of one partition."""
    found = set()
    for place in places(done):
        head, _, tail = place.partition("@")
        first, _, last = tail.partition("..")
        found |= set(range(int(first), int(last or first) + 1)) if head == partition else set()
    return found


@pytest.fixture
def guard(tmp_path: Path) -> sg.Guard:
    """A guard whose state and letters lie in files."""
    (tmp_path / "guard.yaml").write_text(SETTINGS.format(folder=tmp_path))
    return sg.Guard.from_yaml(tmp_path / "guard.yaml")


def test_every_place(
    spark: SparkSession, broker: Broker, topic: MakeTopic, guard: sg.Guard, tmp_path: Path
) -> None:
    """P1, P4: all adds up; then a letter goes, a row goes, a row comes twice, and each is named."""
    name = topic(partitions=3)
    broker.produce(name, orders())
    flow = guard.flow(decode, price, worth_it, name="orders", carry=COORDINATES)

    @sg.foreach_batch
    def store(batch: DataFrame, batch_id: int) -> None:
        batch.write.mode("overwrite").parquet(str(tmp_path / "out" / str(batch_id)))

    def build() -> StreamingQuery:
        rows = read(spark, broker.servers, name).transform(flow)
        batches = rows.writeStream.foreachBatch(guard.foreach_batch(store))
        return started(batches, tmp_path / "checkpoint")

    guard.run(build)
    assert audit(tmp_path).exit_code == 0

    letters = next((tmp_path / "dead").rglob("*.parquet"))
    (at, *_) = pq.read_table(letters, columns=COORDINATES).to_pylist()
    letters.rename(tmp_path / "letters")
    told = audit(tmp_path)
    assert told.exit_code == 1
    assert at["offset"] in offsets(told, f"{name}[{at['partition']}]")
    (tmp_path / "letters").rename(letters)

    file = next((tmp_path / "out" / "0").glob("*.parquet"))
    rows = pq.read_table(file)
    at = rows.slice(0, 1).to_pylist()[0]
    pq.write_table(rows.slice(1), file)
    told = audit(tmp_path)
    assert told.exit_code == 1
    assert at["offset"] in offsets(told, f"{name}[{at['partition']}]")
    pq.write_table(rows, file)

    pq.write_table(rows.slice(0, 1), file.with_name("part-again.parquet"))
    told = audit(tmp_path)
    assert told.exit_code == 1
    assert places(told) == [f"{name}[{at['partition']}]@{at['offset']} (2 x output, 0 x letter)"]
    assert audit(tmp_path, "--allow-doubled").exit_code == 0


def test_sent_by_produce(
    spark: SparkSession, broker: Broker, topic: MakeTopic, guard: sg.Guard, tmp_path: Path
) -> None:
    """P1: messages tell their coordinates by headers, rows that were refused by their letters."""
    name, sent = topic(partitions=3), topic(partitions=2)
    broker.produce(name, orders())
    flow = guard.flow(decode, price, worth_it, name="orders", carry=[*COORDINATES, sg.ORIGIN])
    stage = sg.produce(
        name="send",
        topic=sent,
        key=key_of,
        value=sg.Json(),
        headers={column: column for column in COORDINATES},
        producer={"bootstrap.servers": broker.servers},
    )
    production = guard.produce(stage)

    def build() -> StreamingQuery:
        rows = read(spark, broker.servers, name).transform(flow)
        return started(production.stream(rows), tmp_path / "checkpoint")

    guard.run(build)

    def look() -> Audit:
        output = OutputTopic(bootstrap_servers=broker.servers, topic=sent)
        return guard.audit(checkpoints=[str(tmp_path / "checkpoint")], outputs=[output])

    found = look()
    assert found.adds_up, found.checks
    assert {check.of: check.found for check in found.checks}["send.send"] == COUNT / 500
    first = broker.read_all(sent)[0]
    broker.produce(sent, [Message(value=first.value, headers=first.headers)])
    (doubled,) = (check for check in look().checks if check.places)
    offset = (first.header("offset") or b"").decode()
    assert doubled.places[0].endswith(f"@{offset} (2 x output, 0 x letter)")
