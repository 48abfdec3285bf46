"""The rows of the table that need no streaming query."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from pyspark.sql import DataFrame

import sparkguard as sg
from benchmarks import peers
from benchmarks.bench import Bench, evaluate, evaluated
from benchmarks.compare import Claim, Row, row
from benchmarks.orders import decode, price, ship

FEW = 500  # one bad order in so many: 0.2 %
MANY = 20  # 5 %
RARE = 5_000  # two of an Arrow batch

PASS = Claim("pass", "guarded flow / one bare mapInArrow, same columns (P21)", 1.03)
WIDTH = Claim("columns", "guarded, whole Kafka row / guarded, value alone", 1.15)
CHAINED = Claim("chained", "three guarded stages / three chained bare mapInArrow", 0.7)
ROW_UDF = Claim("row-udf", "guarded / row-UDF with result and error, persist, two writes", 1 / 3)
FAST_UDF = Claim("row-udf-msgspec", "the same, the row-UDF too decodes with msgspec")
FROM_JSON = Claim("from-json", "guarded / from_json PERMISSIVE, SQL rule, persist, two writes", 1.0)
INTO_FILES = Claim("failing-file", "guarded, 5 % failing into files / none failing", 1.5)
INTO_KAFKA = Claim("failing-kafka", "guarded, 5 % failing into Kafka / none failing", 1.5)
MEMORY = Claim("memory", "peak memory of a worker, ten times the records / once", 1.1)


def one_pass(bench: Bench) -> list[Row]:
    """P21, and what the record's other columns cost."""
    flow = bench.guard().flow(decode, price, name="orders")
    full, value = bench.frame(), bench.frame().select("value")
    costs = bench.compare(
        {
            "guarded": evaluated(full.transform(flow)),
            "bare": evaluated(full.mapInArrow(peers.bare, peers.PRICED)),
            "value": evaluated(value.transform(flow)),
        },
        rounds=bench.rounds * 2,
    )
    return [
        row(costs, ("guarded", "bare"), PASS, bench.records),
        row(costs, ("guarded", "value"), WIDTH, bench.records),
    ]


def chained(bench: Bench) -> list[Row]:
    """Three stages, fused and not."""
    flow = bench.guard().flow(decode, price, ship, name="orders")
    frame = bench.frame()
    costs = bench.compare(
        {
            "guarded": evaluated(frame.transform(flow)),
            "chained": evaluated(peers.chained(frame)),
        }
    )
    return [row(costs, ("guarded", "chained"), CHAINED, bench.records)]


def row_udf(bench: Bench) -> list[Row]:
    """Against the form that people write, and the same with the flow's own fast functions."""
    return [
        _two_writes(bench, ROW_UDF, partial(peers.row_udf, peers.tried_usual)),
        _two_writes(bench, FAST_UDF, partial(peers.row_udf, peers.tried)),
    ]


def from_json(bench: Bench) -> list[Row]:
    """Against Spark's own parser."""
    return [_two_writes(bench, FROM_JSON, peers.from_json)]


def failing_file(bench: Bench) -> list[Row]:
    """5 % failing into files."""
    return [_failing(bench, INTO_FILES, bench.guard())]


def failing_kafka(bench: Bench) -> list[Row]:
    """5 % failing into Kafka."""
    topic = bench.broker.create_topic(bench.fresh("dead").name, 4)
    sink = {"type": "kafka", "bootstrap_servers": bench.broker.servers, "topic": topic}
    try:
        return [_failing(bench, INTO_KAFKA, bench.guard(sink))]
    finally:
        bench.broker.delete_topic(topic)


def memory(bench: Bench) -> list[Row]:
    """The worker's peak on ten times the records, a few of each Arrow batch failing."""
    flow = bench.guard().flow(decode, price, name="orders")
    frames = [bench.frame(RARE, size) for size in (bench.records // 10, bench.records)]
    peaks = []
    for number in range(max(3, bench.rounds // 2)):
        bench.tell(f"memory: run {number + 1}")
        peaks.append([bench.meter.peak_memory(_two_tasks(frame, flow)) for frame in frames])
    return [
        Row(
            claim=MEMORY,
            ratios=[large / small for small, large in peaks],
            facts={"MB": max(large for _, large in peaks) / 2**20},
        )
    ]


def _two_tasks(frame: DataFrame, flow: Any) -> Callable[[], object]:
    return lambda: evaluate(frame.coalesce(2).transform(flow))


def _failing(bench: Bench, claim: Claim, guard: sg.Guard) -> Row:
    flow = guard.flow(decode, price, name="orders")
    frames = {"failing": bench.frame(MANY), "clean": bench.frame()}
    costs = bench.compare(
        {side: evaluated(frame.transform(flow)) for side, frame in frames.items()}
    )
    return row(costs, ("failing", "clean"), claim, bench.records)


def _two_writes(
    bench: Bench,
    claim: Claim,
    peer: Callable[[DataFrame], tuple[DataFrame, DataFrame, DataFrame]],
) -> Row:
    flow = bench.guard().flow(decode, price, name="orders")
    frame = bench.frame(FEW)

    def by_hand() -> None:
        both, good, bad = peer(frame)
        evaluate(good)
        bad.write.parquet(str(bench.fresh("bad")))
        both.unpersist(blocking=True)

    jobs = {"guarded": lambda: evaluate(frame.transform(flow)), "by hand": by_hand}
    return row(bench.compare(jobs), ("guarded", "by hand"), claim, bench.records)
