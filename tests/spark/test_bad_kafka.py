"""Bad input and bad use of Kafka: a letter or a sentence, within seconds, and nothing lost."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import sparkguard as sg
from tests.conftest import MakeTopic
from tests.spark.made import build, committed, decode, guard, letters, price, write
from tests.support.kafka import Broker, Message
from tests.support.process import free_port

BIG = b'{"id": 7, "note": "' + b"x" * 10_000_000
LARGE = "20000000"
SOON = 30.0
"""Seconds; a client that waits for a broker that is not there takes minutes."""


def stream(spark: SparkSession, servers: str, **option: str) -> DataFrame:
    """A stream over a topic, by `subscribe` or `subscribePattern`."""
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", servers)
    reader = reader.option("startingOffsets", "earliest").option("includeHeaders", "true")
    return reader.options(**option).load()


def topic_sink(broker_or_servers: Broker | str, topic: str, **more: Any) -> dict[str, Any]:
    """The settings of a sink for letters in a topic, and of one in files."""
    servers = getattr(broker_or_servers, "servers", broker_or_servers)
    sink = {"type": "kafka", "bootstrap_servers": servers, "topic": topic, **more}
    return {"default": sink}


def job(
    made: sg.Guard, frame: DataFrame, folder: Path
) -> Callable[[], StreamingQuery]:
    """The build of the query over a frame."""
    guarded = frame.transform(made.flow(decode, price, name="orders"))
    return build(guarded, folder, made.foreach_batch(write(folder)))


def with_a_big_one(broker: Broker, topic: MakeTopic) -> str:
    """A topic with two good orders, and one of 10 MB between them that does not parse."""
    name = topic(max_message_bytes=LARGE)
    good = [Message(key=b"k", value=b'{"id": %d}' % n) for n in range(2)]
    broker.produce(name, [good[0], Message(key=b"\xff", value=BIG), good[1]])
    return name


def test_ten_megabytes(
    spark: SparkSession, broker: Broker, topic: MakeTopic, tmp_path: Path
) -> None:
    """P6, P17: a record of 10 MB is a letter like any other where the topic takes it."""
    source, dead = with_a_big_one(broker, topic), topic(max_message_bytes=LARGE)
    made = guard(tmp_path, sinks=topic_sink(broker, dead))

    made.run(job(made, stream(spark, broker.servers, subscribe=source), tmp_path))

    (letter,) = broker.read_all(dead)
    assert (letter.key, letter.value) == (b"\xff", BIG)
    total = made.ledger.total("orders")
    assert (total.records_in, total.records_out, total.total("dead_lettered")) == (3, 2, 1)


def test_ten_megabytes_for_a_small_topic(
    spark: SparkSession, broker: Broker, topic: MakeTopic, tmp_path: Path
) -> None:
    """P17: the letter overflows to files, whole, and the topic gets a pointer to it."""
    source, dead = with_a_big_one(broker, topic), topic()
    files = {"files": {"type": "file", "path": str(tmp_path / "dead")}}
    sinks = topic_sink(broker, dead, overflow="files") | files
    made = guard(tmp_path, sinks=sinks)

    made.run(job(made, stream(spark, broker.servers, subscribe=source), tmp_path))

    (pointer,) = broker.read_all(dead)
    (letter,) = letters(tmp_path)
    assert pointer.header("sparkguard.id") == letter.id.encode()
    assert pointer.value is None
    assert letter.record.value == BIG
    assert made.ledger.total("orders").balanced


def test_ten_megabytes_and_no_way_out(
    spark: SparkSession, broker: Broker, topic: MakeTopic, tmp_path: Path
) -> None:
    """P2, P17: a letter that nothing can hold fails the query, which says what would help."""
    source, dead = with_a_big_one(broker, topic), topic()
    made = guard(tmp_path, sinks=topic_sink(broker, dead))

    with pytest.raises(sg.StageFailedError, match="too large for topic .*overflow:") as got:
        made.run(job(made, stream(spark, broker.servers, subscribe=source), tmp_path))

    assert got.value.action == "fail"
    assert not broker.read_all(dead)
    assert committed(tmp_path) == []


def test_no_broker_for_the_letters(spark: SparkSession, tmp_path: Path) -> None:
    """A sink whose broker is not there is a sentence within seconds, when the query is built."""
    made = guard(tmp_path, sinks=topic_sink(f"127.0.0.1:{free_port()}", "dead"))
    frame = spark.readStream.format("rate").load().selectExpr("cast(value as string) value")

    began = time.monotonic()
    with pytest.raises(sg.SinkError, match="no broker answers at 127") as got:
        frame.transform(made.flow(decode, name="orders"))

    assert time.monotonic() - began < SOON
    assert got.value.retriable


def test_no_broker_at_start(spark: SparkSession, tmp_path: Path) -> None:
    """P14: under the supervisor a broker that is not there is an outage, met by restarts."""
    made = guard(
        tmp_path,
        sinks=topic_sink(f"127.0.0.1:{free_port()}", "dead"),
        restart={"max_restarts": 1, "backoff": {"initial": "10ms"}},
    )
    frame = spark.readStream.format("rate").load().selectExpr("cast(value as string) value")
    flow = made.flow(decode, price, name="orders")

    def start() -> StreamingQuery:
        return build(frame.transform(flow), tmp_path, made.foreach_batch(write(tmp_path)))()

    with pytest.raises(sg.RestartLimitError, match="stays down.*no broker answers") as got:
        made.run(start)

    assert got.value.code == 75


def test_no_broker_to_read_from(spark: SparkSession, tmp_path: Path) -> None:
    """A source whose broker is not there is a sentence within seconds; Spark waits for minutes."""
    servers = f"127.0.0.1:{free_port()}"
    frame = stream(spark, servers, subscribe="in")

    began = time.monotonic()
    with pytest.raises(sg.SparkguardError, match=servers):
        frame.transform(guard(tmp_path).flow(decode, name="orders"))
    assert time.monotonic() - began < SOON


def test_no_topic_for_the_letters(
    spark: SparkSession, broker: Broker, topic: MakeTopic, tmp_path: Path
) -> None:
    """P16: a dead-letter topic that does not exist is refused at start, with the command."""
    made = guard(tmp_path, sinks=topic_sink(broker, "not-there"))
    frame = stream(spark, broker.servers, subscribe=topic())

    with pytest.raises(sg.ConfigError, match=r"'not-there' does not exist.*create: true"):
        frame.transform(made.flow(decode, name="orders"))

    assert "not-there" not in broker.topics()


def test_a_pattern_that_finds_the_letters(
    spark: SparkSession, broker: Broker, topic: MakeTopic, tmp_path: Path
) -> None:
    """P16: where the plan does not show the topics, their first record does, before it is sent."""
    dead = topic()
    broker.produce(dead, [Message(value=b'{"id": 1}'), Message(value=b"{")])
    made = guard(tmp_path, sinks=topic_sink(broker, dead))
    frame = stream(spark, broker.servers, subscribePattern=f"{dead}.*")

    with pytest.raises(sg.StageFailedError, match="own topic") as got:
        made.run(job(made, frame, tmp_path))

    assert got.value.action == "fail"
    assert len(broker.read_all(dead)) == 2
    assert committed(tmp_path) == []
