"""A stateful stage against the same logic by hand, and one hot key against an even spread."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as f
from pyspark.sql.streaming import StatefulProcessor

import sparkguard as sg
from benchmarks.bench import Bench
from benchmarks.compare import Claim, row
from benchmarks.compare import Row as Line

HAND = Claim("stateful", "stateful stage / transformWithState by hand", 1.1)
MEMORY = Claim("stateful-memory", "peak memory of a worker, 200,000 keys / 20,000", 1.1)
HOT = Claim("stateful-hot", "stateful stage, half of all events of one key / even", 2.0)

EVENTS, KEYS = 200_000, 20_000
PROVIDER = "spark.sql.streaming.stateStore.providerClass"
ROCKS = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
STORE = "spark.sql.streaming.stateStore.rocksdb"
PARTS = 2
ROW = "account string, number long, amount double, note string"


class Booked(msgspec.Struct):
    """An event."""

    account: str
    number: int
    amount: float
    note: str


class Account(msgspec.Struct):
    """A state."""

    total: float = 0.0
    count: int = 0


class Balance(msgspec.Struct):
    """What is told after each event."""

    account: str
    total: float
    count: int


@sg.stateful(key="account", state=Account, sequence="number")
def book(state: Account | None, event: Booked) -> sg.Update[Account, Balance]:
    """Sums up."""
    state = state or Account()
    total, count = state.total + event.amount, state.count + 1
    return sg.Update(state=Account(total, count), emit=[Balance(event.account, total, count)])


class ByHand(StatefulProcessor):
    """The same, in order and each number once, with nothing that would catch an exception."""

    def init(self, handle: Any) -> None:
        """Declare the state."""
        self._state = handle.getValueState("state", "total double, count long, number long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        """Sum up."""
        total, count, last = self._state.get() or (0.0, 0, -1)
        for one in sorted(rows, key=lambda one: one.number):
            if one.number > last:
                total, count, last = total + one.amount, count + 1, one.number
                yield Row(account=key[0], total=total, count=count)
        self._state.update((total, count, last))

    def close(self) -> None:
        """Nothing is open."""


def stateful(bench: Bench) -> list[Line]:
    """Each run is a query with one micro-batch and a checkpoint of its own."""
    even, hot = _events(bench, "true"), _events(bench, "id % 2 = 0")
    bench.spark.conf.set(PROVIDER, ROCKS)
    try:
        costs = bench.compare(
            {
                "guarded": partial(_run, bench, even, _guarded),
                "by hand": partial(_run, bench, even, _by_hand),
                "hot": partial(_run, bench, hot, _guarded),
            },
            warm_ups=1,
        )
    finally:
        bench.spark.conf.unset(PROVIDER)
    return [
        row(costs, ("guarded", "by hand"), HAND, EVENTS),
        row(costs, ("hot", "guarded"), HOT, EVENTS),
    ]


def memory(bench: Bench) -> list[Line]:
    """Ten times the keys, two events each, in ten batches of the same size.

    Of the JVM nothing is said: its heap is as large as it may be.
    """
    conf = {PROVIDER: ROCKS, f"{STORE}.boundedMemoryUsage": "true"}
    conf[f"{STORE}.maxMemoryUsageMB"] = "64"
    for name, value in conf.items():
        bench.spark.conf.set(name, value)
    try:
        folders = [
            _events(bench, "true", events=2 * KEYS * n, keys=KEYS * n, files=PARTS * n)
            for n in (1, 10)
        ]
        peaks = []
        for number in range(max(2, bench.rounds // 2)):
            bench.tell(f"stateful-memory: run {number + 1}")
            jobs = [partial(_run, bench, folder, _guarded) for folder in folders]
            peaks.append([bench.meter.peak_memory(job) for job in jobs])
    finally:
        for name in conf:
            bench.spark.conf.unset(name)
    return [
        Line(
            claim=MEMORY,
            ratios=[many / few for few, many in peaks],
            facts={"MB": max(many for _, many in peaks) / 2**20},
        )
    ]


def _events(
    bench: Bench, spread: str, *, events: int = EVENTS, keys: int = KEYS, files: int = PARTS
) -> Path:
    folder = bench.fresh("events")
    account = f"'account-' || if({spread}, pmod(hash(id), {keys}), 0)"
    bench.spark.range(0, events, 1, files).select(
        f.expr(account).alias("account"),
        f.col("id").alias("number"),
        f.lit(1.0).alias("amount"),
        f.lit("a note of some length").alias("note"),
    ).write.parquet(str(folder))
    return folder


def _run(bench: Bench, folder: Path, stage: Callable[[Bench, DataFrame], DataFrame]) -> None:
    reader = bench.spark.readStream.schema(ROW).option("maxFilesPerTrigger", PARTS)
    frame = reader.parquet(str(folder))
    checkpoint = str(bench.fresh("checkpoint"))
    writer = stage(bench, frame).writeStream.format("noop").trigger(availableNow=True)
    writer.option("checkpointLocation", checkpoint).start().awaitTermination()


def _guarded(bench: Bench, frame: DataFrame) -> DataFrame:
    return frame.transform(bench.guard().stateful(book))


def _by_hand(_: Bench, frame: DataFrame) -> DataFrame:
    kind = "account string, total double, count long"
    return frame.groupBy("account").transformWithState(ByHand(), kind, "append", "None")
