"""The main job over a real broker: Kafka → guarded flow → Kafka, letters in a topic."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import sparkguard as sg
from tests.conftest import MakeTopic
from tests.support.kafka import Broker, Message

ORDERS = 200_000
PARTITIONS = 4
FIRST = int(time.time() * 1000) - ORDERS
"""Timestamp of the first order: the broker deletes what is a week old."""


class Order(msgspec.Struct):
    id: int
    amount: float
    note: str = ""


class Priced(msgspec.Struct):
    id: int
    total: float


decode = sg.deserialize(sg.Json(Order), name="decode")


@sg.map
def price(order: Order) -> Priced:
    """The business rule: no order is negative."""
    if order.amount < 0:
        raise ValueError(f"order {order.id} has a negative amount")
    return Priced(order.id, order.amount * 1.2)


def orders(count: int) -> Iterator[Message]:
    """Orders of which 0.1 % do not parse and 0.1 % break the rule, and the odd ones."""
    for n in range(count):
        key = None if n % 7 == 0 else b"\xff\x00%d" % n if n % 11 == 0 else b"%d" % n
        headers = (("trace", b"%d" % n), ("trace", b"again"), ("none", None)) if n % 3 else ()
        if n % 1000 == 1:
            value = b'{"id": %d, "amount": ' % n
        elif n % 1000 == 2:
            value = b'{"id": %d, "amount": -1}' % n
        else:
            value = b'{"id": %d, "amount": 10}' % n
        yield Message(
            key=key, value=value, headers=headers, partition=n % PARTITIONS, timestamp=FIRST + n
        )


def odd_ones() -> list[Message]:
    """What a topic may hold beside orders; none of them becomes an output row but the last."""
    big = b"x" * 900_000
    return [
        Message(key=b"tombstone", value=None, headers=(("h", b"1"),), partition=0),
        Message(key=None, value=None, partition=1),
        Message(key=b"empty", value=b"", partition=2),
        Message(
            key=b"\xc3\x28", value=b"\xff\xfe\xfd", headers=(("\u00e9", b"\x00"),), partition=3
        ),
        Message(key=big[:1000], value=b"{" + big, headers=(("big", b"1"),), partition=0),
        Message(key=b"two", value=b'{"id": 1, "amount": 1}{"id": 2, "amount": 2}', partition=1),
        Message(key=b"ok", value=b'{"id": -7, "amount": 1, "note": "' + big + b'"}', partition=2),
    ]


def job(
    spark: SparkSession, broker: Broker, guard: sg.Guard, topics: dict[str, str], checkpoint: Path
) -> Callable[[], StreamingQuery]:
    """The build of the main job: everything there is, then it ends."""
    flow = guard.flow(decode, price, name="orders")
    frame = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", broker.servers)
        .option("subscribe", topics["in"])
        .option("startingOffsets", "earliest")
        .option("includeHeaders", "true")
        .option("maxOffsetsPerTrigger", 80_000)
        .load()
    )

    @sg.foreach_batch
    def store(batch: DataFrame, batch_id: int) -> None:
        (
            batch.selectExpr("cast(id as string) key", "to_json(struct(*)) value")
            .write.format("kafka")
            .option("kafka.bootstrap.servers", broker.servers)
            .option("topic", topics["out"])
            .save()
        )

    def build() -> StreamingQuery:
        return (
            frame.transform(flow)
            .writeStream.foreachBatch(guard.foreach_batch(store))
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )

    return build


def settings(broker: Broker, dead: str, folder: Path, **more: Any) -> sg.Settings:
    """The settings of the main job: letters in a topic."""
    sink = {"type": "kafka", "bootstrap_servers": broker.servers, "topic": dead}
    return sg.Settings(
        app="journey", state={"path": str(folder / "state")}, sinks={"default": sink}, **more
    )


def facts(message: Message) -> tuple[bytes | None, bytes | None, tuple[Any, ...]]:
    """What must come back byte for byte."""
    return message.key, message.value, tuple(message.headers)


def number(letter: Message, header: str) -> int:
    """A number among a letter's facts."""
    return int(letter.header(header) or b"-1")


def own_headers(letter: Message) -> tuple[Any, ...]:
    """The record's own headers in a letter of the native dialect."""
    return tuple(h for h in letter.headers if not h[0].startswith("sparkguard."))


def test_every_record_is_accounted_for(
    spark: SparkSession, broker: Broker, topic: MakeTopic, tmp_path: Path
) -> None:
    """P1, P3, P4, P6: output, letters and ledger add up, and each letter equals its source."""
    topics = {"in": topic(PARTITIONS), "out": topic(2), "dead": topic(3)}
    broker.produce(topics["in"], orders(ORDERS))
    broker.produce(topics["in"], odd_ones())
    guard = sg.Guard(settings(broker, topics["dead"], tmp_path))

    guard.run(job(spark, broker, guard, topics, tmp_path / "checkpoint"))

    sent = {(m.partition, m.offset): m for m in broker.read_all(topics["in"])}
    out = [msgspec.json.decode(m.value or b"")["id"] for m in broker.read_all(topics["out"])]
    letters = broker.read_all(topics["dead"])
    good = {n for n in range(ORDERS) if n % 1000 not in (1, 2)} | {-7}
    assert sorted(out) == sorted(good)
    places = set()
    for letter in letters:
        place = number(letter, "sparkguard.partition"), number(letter, "sparkguard.offset")
        source = sent[place]
        assert letter.header("sparkguard.topic") == topics["in"].encode()
        assert (letter.key, letter.value, own_headers(letter)) == facts(source)
        places.add(place)
    assert len(places) == len(letters) == len(sent) - len(good) == 400 + 6
    total = guard.ledger.total("orders")
    assert total.balanced
    assert (total.records_in, total.records_out) == (len(sent), len(good))
    assert total.stages["decode"]["dead_lettered"] == 200 + 6
    assert total.stages["price"]["dead_lettered"] == 200


def test_a_dead_letter_topic_that_is_the_input(
    spark: SparkSession, broker: Broker, topic: MakeTopic, tmp_path: Path
) -> None:
    """P16: a query that would feed on its own letters is refused when it is built."""
    name = topic()
    guard = sg.Guard(settings(broker, name, tmp_path))
    build = job(spark, broker, guard, {"in": name, "out": name}, tmp_path / "checkpoint")

    with pytest.raises(sg.SparkguardError, match=name):
        build()
