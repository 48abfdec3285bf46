"""To Kafka from the workers, against Spark's own sink: the time that every record takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from pyspark.sql import DataFrame

import sparkguard as sg
from benchmarks import orders
from benchmarks.bench import Bench
from benchmarks.compare import Claim, Row, row

BYTES = Claim("produce", "produce of key and value as they are / Spark's Kafka sink, time", 1.1)
JSON = Claim("produce-json", "produce of rows as JSON / to_json and Spark's sink, time", 1.1)

ORDER = "id string, customer string, amount double, currency string, at string, lines int"

Send = Callable[[Bench, str], None]


def sends(bench: Bench) -> list[Row]:
    """Columns that are bytes already, and rows that become JSON on the way."""
    given = bench.frame().select("key", "value")
    rows = given.selectExpr(
        "cast(key as string) key", f"from_json(cast(value as string), '{ORDER}') o"
    ).selectExpr("key", "o.*")
    # Made once: neither side is to be measured parsing.
    parsed = rows.localCheckpoint()
    written = parsed.selectExpr("key", "to_json(struct(*)) value")
    try:
        return [
            _against(bench, BYTES, partial(_guarded, given, "value"), partial(_spark, given)),
            _against(bench, JSON, partial(_guarded, parsed, sg.Json()), partial(_spark, written)),
        ]
    finally:
        parsed._jdf.queryExecution().toRdd().unpersist(False)  # noqa: FBT003, SLF001


def _against(bench: Bench, claim: Claim, ours: Send, theirs: Send) -> Row:
    jobs = {"guarded": partial(_to_topic, bench, ours), "spark": partial(_to_topic, bench, theirs)}
    found = row(bench.compare(jobs), ("guarded", "spark"), claim, bench.records)
    # What is promised is throughput: the wall clock is the ratio here, CPU stands beside it.
    return replace(found, ratios=found.wall, wall=[])


def _to_topic(bench: Bench, send: Send) -> None:
    topic = bench.broker.create_topic(bench.fresh("sent").name, orders.PARTITIONS)
    try:
        send(bench, topic)
    finally:
        bench.broker.delete_topic(topic)


def _guarded(frame: DataFrame, value: Any, bench: Bench, topic: str) -> None:
    producer = {"bootstrap.servers": bench.broker.servers}
    out = sg.produce(name="out", topic=topic, key="key", value=value, producer=producer)
    bench.guard().produce(out).write(frame)


def _spark(frame: DataFrame, bench: Bench, topic: str) -> None:
    (
        frame.write.format("kafka")
        .option("kafka.bootstrap.servers", bench.broker.servers)
        .option("topic", topic)
        .save()
    )
