"""The rows of the table that need no streaming query."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark.sql import DataFrame

from benchmarks import peers
from benchmarks.bench import Bench, evaluate, evaluated
from benchmarks.compare import Row, row
from benchmarks.orders import decode, price, ship

FEW = 500  # one bad order in so many: 0.2 %
MANY = 20  # 5 %
RARE = 5_000  # two of an Arrow batch


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
        row(
            costs,
            ("guarded", "bare"),
            name="pass",
            says="guarded flow / one bare mapInArrow, same columns (P21)",
            goal=1.03,
            records=bench.records,
        ),
        row(
            costs,
            ("guarded", "value"),
            name="columns",
            says="guarded, whole Kafka row / guarded, value alone",
            goal=1.15,
            records=bench.records,
        ),
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
    says = "three guarded stages / three chained bare mapInArrow"
    return [_row(bench, costs, "chained", says, 0.7)]


def row_udf(bench: Bench) -> list[Row]:
    """Against the form that people write."""
    says = "guarded / row-UDF with result and error, persist, two writes"
    return [_two_writes(bench, "row-udf", says, 1 / 3, peers.row_udf)]


def from_json(bench: Bench) -> list[Row]:
    """Against Spark's own parser."""
    says = "guarded / from_json PERMISSIVE, SQL rule, persist, two writes"
    return [_two_writes(bench, "from-json", says, 1.0, peers.from_json)]


def failing_file(bench: Bench) -> list[Row]:
    """5 % failing into files."""
    return [_failing(bench, "failing-file", "files", bench.guard())]


def failing_kafka(bench: Bench) -> list[Row]:
    """5 % failing into Kafka."""
    topic = bench.broker.create_topic(bench.fresh("dead").name, 4)
    sink = {"type": "kafka", "bootstrap_servers": bench.broker.servers, "topic": topic}
    try:
        return [_failing(bench, "failing-kafka", "Kafka", bench.guard(sink))]
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
            name="memory",
            says="peak memory of a worker, ten times the records / once",
            goal=1.1,
            judged="memory",
            ratios=[large / small for small, large in peaks],
            facts={"MB": max(large for _, large in peaks) / 2**20},
        )
    ]


def _two_tasks(frame: DataFrame, flow: Any) -> Callable[[], object]:
    return lambda: evaluate(frame.coalesce(2).transform(flow))


def _failing(bench: Bench, name: str, sink: str, guard: Any) -> Row:
    flow = guard.flow(decode, price, name="orders")
    frames = {"failing": bench.frame(MANY), "clean": bench.frame()}
    costs = bench.compare(
        {side: evaluated(frame.transform(flow)) for side, frame in frames.items()}
    )
    says = f"guarded, 5 % failing into {sink} / none failing"
    pair = ("failing", "clean")
    return row(costs, pair, name=name, says=says, goal=1.5, records=bench.records)


def _two_writes(
    bench: Bench,
    name: str,
    says: str,
    goal: float,
    peer: Callable[[DataFrame], tuple[DataFrame, DataFrame, DataFrame]],
) -> Row:
    flow = bench.guard().flow(decode, price, name="orders")
    frame = bench.frame(FEW)

    def by_hand() -> None:
        both, good, bad = peer(frame)
        evaluate(good)
        bad.write.parquet(str(bench.fresh("bad")))
        both.unpersist(blocking=True)

    jobs = {"guarded": lambda: evaluate(frame.transform(flow)), name: by_hand}
    return _row(bench, bench.compare(jobs), name, says, goal)


def _row(bench: Bench, costs: Any, name: str, says: str, goal: float) -> Row:
    pair = ("guarded", name)
    return row(costs, pair, name=name, says=says, goal=goal, records=bench.records)
