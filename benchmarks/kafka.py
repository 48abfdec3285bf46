"""Kafka to Kafka: the whole job, a streaming query from one topic to another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks import orders, peers
from benchmarks.bench import Bench
from benchmarks.compare import Claim, Costs, Row, row
from benchmarks.rows import FEW

BATCHES = 4  # of every run, large and small: what a batch costs anyway is no record's
SMALL = 50  # the small run has so many times fewer records

WHOLE = Claim("kafka", "Kafka to Kafka, guarded / one bare pass with a producer for bad ones")
MARGINAL = Claim("kafka-marginal", "the same, CPU of each further record", 1.03)
BY_HAND = Claim("kafka-by-hand", "guarded / foreachBatch with row-UDF, persist, two writes")

Start = Callable[["Topics"], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Topics:
    """What one run reads and writes, and how many records in a batch."""

    source: str
    at_once: int
    out: str
    dead: str


def kafka(bench: Bench) -> list[Row]:
    """Guarded, unguarded and by hand."""
    sources = {"": bench.records, " small": bench.records // SMALL}
    ways: dict[str, Start] = {
        "guarded": partial(_guarded, bench),
        "unguarded": partial(_unguarded, bench),
        "by hand": partial(_by_hand, bench),
    }
    jobs = {}
    for size, count in sources.items():
        source = f"orders{size.replace(' ', '-')}"
        _fill(bench, source, count)
        for name, way in ways.items():
            if not (size and name == "by hand"):
                jobs[name + size] = partial(_with_topics, bench, (source, count // BATCHES), way)
    costs = bench.compare(jobs, warm_ups=1)
    return [
        row(costs, ("guarded", "unguarded"), WHOLE, bench.records),
        _marginal(costs, bench.records),
        row(costs, ("guarded", "by hand"), BY_HAND, bench.records),
    ]


def _marginal(costs: Costs, records: int) -> Row:
    """CPU a record, without what a query costs anyway."""
    more = records - records // SMALL
    marginal = {
        side: [
            (large.cpu - small.cpu) / more * 1e6
            for large, small in zip(costs[side], costs[f"{side} small"], strict=True)
        ]
        for side in ("guarded", "unguarded")
    }
    pairs = zip(marginal["guarded"], marginal["unguarded"], strict=True)
    return Row(
        claim=MARGINAL,
        ratios=[ours / theirs for ours, theirs in pairs],
        facts={f"{side} µs CPU a record": median(each) for side, each in marginal.items()},
    )


def _fill(bench: Bench, topic: str, count: int) -> None:
    bench.tell(f"sending {count:,} orders to Kafka")
    bench.broker.create_topic(topic, orders.PARTITIONS)
    _to_kafka(
        orders.frame(bench.spark, count, FEW).select("key", "value", "headers", "partition"),
        bench,
        topic,
    ).option("includeHeaders", "true").save()


def _with_topics(bench: Bench, source: tuple[str, int], way: Start) -> None:
    """Run one way with topics of its own."""
    name, (topic, at_once) = bench.fresh("kafka").name, source
    topics = Topics(source=topic, at_once=at_once, out=f"{name}-out", dead=f"{name}-dead")
    for topic in (topics.out, topics.dead):
        bench.broker.create_topic(topic, orders.PARTITIONS)
    try:
        way(topics)
    finally:
        for topic in (topics.out, topics.dead):
            bench.broker.delete_topic(topic)


def _source(bench: Bench, topics: Topics) -> DataFrame:
    return (
        bench.spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", bench.broker.servers)
        .option("subscribe", topics.source)
        .option("startingOffsets", "earliest")
        .option("includeHeaders", "true")
        .option("maxOffsetsPerTrigger", topics.at_once)
        .load()
        .select(*orders.COLUMNS)
    )


def _to_kafka(frame: DataFrame, bench: Bench, topic: str) -> Any:
    return (
        frame.write.format("kafka")
        .option("kafka.bootstrap.servers", bench.broker.servers)
        .option("topic", topic)
    )


def _start(bench: Bench, rows: DataFrame, topics: Topics) -> StreamingQuery:
    return (
        rows.writeStream.format("kafka")
        .option("kafka.bootstrap.servers", bench.broker.servers)
        .option("topic", topics.out)
        .option("checkpointLocation", str(bench.fresh("checkpoint")))
        .trigger(availableNow=True)
        .start()
    )


def _guarded(bench: Bench, topics: Topics) -> None:
    sink = {"type": "kafka", "bootstrap_servers": bench.broker.servers, "topic": topics.dead}
    guard = bench.guard(sink)
    flow = guard.flow(orders.decode, orders.price, orders.message, name="orders")
    guard.run(lambda: _start(bench, _source(bench, topics).transform(flow), topics))


def _unguarded(bench: Bench, topics: Topics) -> None:
    by_hand = peers.KafkaPass(bench.broker.servers, topics.dead)
    rows = _source(bench, topics).mapInArrow(by_hand, peers.MESSAGE)
    _start(bench, rows, topics).awaitTermination()


def _by_hand(bench: Bench, topics: Topics) -> None:
    def write(batch: DataFrame, _: int) -> None:
        both, good, bad = peers.row_udf_messages(batch)
        _to_kafka(good, bench, topics.out).save()
        _to_kafka(bad.select("key", "value", "headers"), bench, topics.dead).option(
            "includeHeaders", "true"
        ).save()
        both.unpersist()

    query = (
        _source(bench, topics)
        .writeStream.foreachBatch(write)
        .option("checkpointLocation", str(bench.fresh("checkpoint")))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
