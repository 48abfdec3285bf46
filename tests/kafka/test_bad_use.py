"""Bad input and bad use of Kafka: a sentence within seconds or a letter, and nothing lost."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.dataset as ds
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import sparkguard as sg
from sparkguard.core.letter_row import letter_from_row
from tests.conftest import MakeTopic
from tests.support.kafka import Broker, Message
from tests.support.process import free_port

BIG = 10_000_000
ROOM = "12000000"


class Order(msgspec.Struct):
    id: int


decode = sg.deserialize(sg.Json(Order), name="decode")


def source(spark: SparkSession, servers: str, **options: str) -> DataFrame:
    """A stream of everything there is."""
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", servers)
    reader = reader.option("startingOffsets", "earliest").option("includeHeaders", "true")
    return reader.options(**options).load()


def guard(
    folder: Path, servers: str, dead: str, *, restart: dict[str, Any] | None = None, **sink: Any
) -> sg.Guard:
    """A guard whose letters go to a topic."""
    to = {"type": "kafka", "bootstrap_servers": servers, "topic": dead, **sink}
    files = {"type": "file", "path": str(folder / "overflow")}
    return sg.Guard(
        sg.Settings(
            app="app",
            state={"path": str(folder / "state")},
            sinks={"default": to, "files": files},
            restart=restart or {},
        )
    )


def build(made: sg.Guard, guarded: DataFrame, folder: Path) -> Callable[[], StreamingQuery]:
    """What starts the query over everything there is; the ids go to files."""

    @sg.foreach_batch
    def store(batch: DataFrame, batch_id: int) -> None:
        batch.write.mode("overwrite").parquet(f"{folder}/out/{batch_id}")

    def query() -> StreamingQuery:
        return (
            guarded.writeStream.foreachBatch(made.foreach_batch(store))
            .option("checkpointLocation", str(folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )

    return query


def out(folder: Path) -> list[int]:
    """The ids that came through."""
    if not list((folder / "out").glob("*/*.parquet")):
        return []
    found: list[int] = (
        ds.dataset(list(map(str, (folder / "out").glob("*/*.parquet"))))
        .to_table()["id"]
        .to_pylist()
    )
    return sorted(found)


def test_nobody_at_the_dead_letter_servers(spark: SparkSession, tmp_path: Path) -> None:
    """A broker that is not there at start is a sentence within seconds, and not a hang."""
    servers = f"127.0.0.1:{free_port()}"
    flow = guard(tmp_path, servers, "dead").flow(decode, name="orders")
    begun = time.monotonic()

    with pytest.raises(sg.SinkError, match=f"'default': no broker answers at {servers}"):
        spark.createDataFrame([("{}",)], "value string").transform(flow)

    assert time.monotonic() - begun < 20


def test_nobody_at_the_source(spark: SparkSession, tmp_path: Path) -> None:
    """Likewise for the broker that is to be read; Spark would try for minutes without a word."""
    servers = f"127.0.0.1:{free_port()}"
    made = sg.Guard(sg.Settings(sinks={"default": {"type": "file", "path": str(tmp_path)}}))
    frame = source(spark, servers, subscribe="orders")
    begun = time.monotonic()

    with pytest.raises(sg.SparkguardError, match=f"no broker answers at {servers}"):
        frame.transform(made.flow(decode, name="orders"))

    assert time.monotonic() - begun < 20


def test_nobody_at_the_dead_letter_servers_of_a_supervised_query(
    spark: SparkSession, tmp_path: Path
) -> None:
    """P14: under the supervisor a broker that is not there is an outage, met by restarts."""
    restart = {"max_restarts": 1, "backoff": {"initial": "10ms"}}
    made = guard(tmp_path, f"127.0.0.1:{free_port()}", "dead", restart=restart)
    frame = spark.readStream.format("rate").load().selectExpr("cast(value as string) value")
    flow = made.flow(decode, name="orders")

    def start() -> StreamingQuery:
        return build(made, frame.transform(flow), tmp_path)()

    with pytest.raises(sg.RestartLimitError, match=r"stays down.*no broker answers") as got:
        made.run(start)

    assert got.value.code == 75


def test_no_dead_letter_topic(
    spark: SparkSession, broker: Broker, topic: MakeTopic, tmp_path: Path
) -> None:
    """P16: a dead-letter topic that is not there is refused at start, unless `create: true`."""
    frame = source(spark, broker.servers, subscribe=topic())
    dead = f"{topic()}-dead"

    with pytest.raises(sg.ConfigError, match=rf"sinks.default.topic: .*{dead}.*create: true"):
        frame.transform(guard(tmp_path, broker.servers, dead).flow(decode, name="orders"))
    assert dead not in broker.topics()

    frame.transform(guard(tmp_path, broker.servers, dead, create=True).flow(decode, name="orders"))
    assert dead in broker.topics()


def test_ten_megabytes(
    spark: SparkSession, broker: Broker, topic: MakeTopic, tmp_path: Path
) -> None:
    """P6, P17: a record of 10 MB is a letter like any other where the topic takes it."""
    name, dead = topic(max_message_bytes=ROOM), topic(max_message_bytes=ROOM)
    big = b'{"id": 7, "note": "' + b"x" * BIG
    good = [Message(key=b"k", value=b'{"id": %d}' % n) for n in range(2)]
    broker.produce(name, [good[0], Message(key=b"\xff", value=big), good[1]])
    made = guard(tmp_path, broker.servers, dead)
    flow = made.flow(decode, name="orders")

    made.run(build(made, source(spark, broker.servers, subscribe=name).transform(flow), tmp_path))

    (letter,) = broker.read_all(dead)
    assert (letter.key, letter.value) == (b"\xff", big)
    total = made.ledger.total("orders")
    assert (total.records_in, total.records_out, total.total("dead_lettered")) == (3, 2, 1)


def test_ten_megabytes_overflow(
    spark: SparkSession, broker: Broker, topic: MakeTopic, tmp_path: Path
) -> None:
    """P17: a letter too large for its topic lies whole in a file, and the topic has a pointer."""
    name, dead = topic(max_message_bytes=ROOM), topic()
    big = b'{"id": "' + b"x" * BIG + b'"}'
    values = [b'{"id": 1}', big, b'{"id": 2', b'{"id": 3}']
    broker.produce(name, [Message(key=b"k", value=value) for value in values])
    made = guard(tmp_path, broker.servers, dead, overflow="files")
    flow = made.flow(decode, name="orders")

    made.run(build(made, source(spark, broker.servers, subscribe=name).transform(flow), tmp_path))

    assert out(tmp_path) == [1, 3]
    found = {int(it.header("sparkguard.offset") or b"-1"): it for it in broker.read_all(dead)}
    assert found[2].value == values[2]
    assert found[1].value is None
    assert found[1].header("sparkguard.overflow") == b"files"
    rows = ds.dataset(tmp_path / "overflow", format="parquet").to_table().to_pylist()
    (whole,) = [letter_from_row(row) for row in rows]
    assert (whole.record.value, whole.record.offset) == (big, 1)
    assert whole.id.encode() == found[1].header("sparkguard.id")
    total = made.ledger.total("orders")
    assert total.balanced
    assert total.total("dead_lettered") == 2


def test_ten_megabytes_without_overflow(
    spark: SparkSession, broker: Broker, topic: MakeTopic, tmp_path: Path
) -> None:
    """P2, P17: without a place for it the query fails, says why, and commits nothing."""
    name, dead = topic(max_message_bytes=ROOM), topic()
    big = b'{"id": "' + b"x" * BIG + b'"}'
    broker.produce(name, [Message(value=b'{"id": 1}'), Message(value=big)])
    made = guard(tmp_path, broker.servers, dead)
    guarded = source(spark, broker.servers, subscribe=name).transform(
        made.flow(decode, name="orders")
    )

    with pytest.raises(sg.StageFailedError) as got:
        made.run(build(made, guarded, tmp_path))

    assert f"is too large for topic '{dead}'" in got.value.sentence
    assert f"{name}[0]@1" in got.value.sentence
    assert "overflow:" in got.value.sentence
    assert not list((tmp_path / "checkpoint" / "commits").glob("[0-9]*"))
    assert out(tmp_path) == []
    assert broker.read_all(dead) == []


def test_a_pattern_that_covers_the_dead_letters(
    spark: SparkSession, broker: Broker, topic: MakeTopic, tmp_path: Path
) -> None:
    """P16: a query that would read its own letters fails at the first of them, and sends none."""
    name = topic()
    dead = broker.create_topic(f"{name}-dead")
    broker.produce(dead, [Message(value=b'{"id": 2')])
    broker.produce(name, [Message(value=b'{"id": 1}')])
    made = guard(tmp_path, broker.servers, dead)
    guarded = source(spark, broker.servers, subscribePattern=f"{name}.*").transform(
        made.flow(decode, name="orders")
    )

    with pytest.raises(sg.StageFailedError) as got:
        made.run(build(made, guarded, tmp_path))

    assert f"{dead}[0]@0 was read from this sink's own topic" in got.value.sentence
    assert got.value.action == "fail"
    assert len(broker.read_all(dead)) == 1


def test_a_good_record_of_the_dead_letter_topic(
    spark: SparkSession, broker: Broker, topic: MakeTopic, tmp_path: Path
) -> None:
    """P16: it is refused before one fails: letters that are good now would come out twice."""
    name = topic()
    dead = broker.create_topic(f"{name}-dead")
    broker.produce(dead, [Message(value=b'{"id": 2}')])
    made = guard(tmp_path, broker.servers, dead)
    guarded = source(spark, broker.servers, subscribePattern=f"{name}.*").transform(
        made.flow(decode, name="orders")
    )

    with pytest.raises(sg.StageFailedError, match="was read from this sink's own topic"):
        made.run(build(made, guarded, tmp_path))

    assert out(tmp_path) == []


def test_the_redrive_topic_without_headers(
    spark: SparkSession, broker: Broker, topic: MakeTopic, tmp_path: Path
) -> None:
    """P5: without what counts how often a record was sent back, its loop would be endless."""
    again, other = topic(), topic()
    files = {"default": {"type": "file", "path": str(tmp_path / "dead")}}
    state = {"path": str(tmp_path / "state")}
    made = sg.Guard(sg.Settings(app="a", state=state, sinks=files, redrive={"topic": again}))

    def stream(subscribe: str, headers: str) -> DataFrame:
        return source(spark, broker.servers, subscribe=subscribe, includeHeaders=headers)

    flow = made.flow(decode, name="orders", carry="value")
    for frame in (
        stream(f"{other},{again}", "false"),
        stream(again, "true").select("value"),
        stream(again, "true").drop("headers"),
    ):
        with pytest.raises(sg.StageError, match="set the option includeHeaders to true"):
            frame.transform(flow)
    stream(other, "false").transform(flow)
    behind = made.flow(sg.deserialize(sg.Json(Order), name="behind"), name="second")
    stream(f"{other},{again}", "true").transform(flow).select("value").transform(behind)
