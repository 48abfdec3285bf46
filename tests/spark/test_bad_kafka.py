"""A record of 10 MB, and a broker that is not there when a supervised query starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import sparkguard as sg
from tests.conftest import MakeTopic
from tests.spark.made import build, decode, guard, price, write
from tests.support.kafka import Broker, Message
from tests.support.process import free_port

BIG = b'{"id": 7, "note": "' + b"x" * 10_000_000
LARGE = "20000000"


def topic_sink(servers: str, topic: str) -> dict[str, Any]:
    """The settings of a sink for letters in a topic."""
    return {"default": {"type": "kafka", "bootstrap_servers": servers, "topic": topic}}


def test_ten_megabytes(
    spark: SparkSession, broker: Broker, topic: MakeTopic, tmp_path: Path
) -> None:
    """P6, P17: a record of 10 MB is a letter like any other where the topic takes it."""
    source, dead = topic(max_message_bytes=LARGE), topic(max_message_bytes=LARGE)
    good = [Message(key=b"k", value=b'{"id": %d}' % n) for n in range(2)]
    broker.produce(source, [good[0], Message(key=b"\xff", value=BIG), good[1]])
    made = guard(tmp_path, sinks=topic_sink(broker.servers, dead))
    frame = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", broker.servers)
        .option("startingOffsets", "earliest")
        .option("includeHeaders", "true")
        .option("subscribe", source)
        .load()
    )
    guarded = frame.transform(made.flow(decode, price, name="orders"))

    made.run(build(guarded, tmp_path, made.foreach_batch(write(tmp_path))))

    (letter,) = broker.read_all(dead)
    assert (letter.key, letter.value) == (b"\xff", BIG)
    total = made.ledger.total("orders")
    assert (total.records_in, total.records_out, total.total("dead_lettered")) == (3, 2, 1)


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

    with pytest.raises(sg.RestartLimitError, match=r"stays down.*no broker answers") as got:
        made.run(start)

    assert got.value.code == 75
