"""Isolation: what a few bad rows of a batch cost, against the same write without them."""

from __future__ import annotations

from functools import partial

from pyspark.sql import DataFrame

import sparkguard as sg
from benchmarks.bench import Bench
from benchmarks.compare import Claim, Row, row

BAD = (1, 3, 30)
PART = 10  # a tenth of the records is one batch


def isolated(bench: Bench) -> list[Row]:
    """One, three and thirty bad rows of a batch (100,000 unless asked otherwise), into Parquet."""
    return [_isolated(bench, count) for count in BAD]


def _isolated(bench: Bench, bad: int) -> Row:
    rows = bench.records // PART
    claim = Claim(f"isolation-{bad}", f"foreach_batch, {bad} bad of {rows:,} rows / none bad")
    calls: list[int] = []
    jobs = {
        "failing": partial(_write, bench, _rows(bench, rows, bad), calls),
        "clean": partial(_write, bench, _rows(bench, rows, 0), []),
    }
    # Hundreds of Spark's jobs each: once says enough where a run takes a minute.
    many = bad == BAD[-1]
    costs = bench.compare(jobs, warm_ups=0 if many else 1, rounds=1 if many else 3)
    found = row(costs, ("failing", "clean"), claim, rows)
    found.facts["calls"] = calls[-1]
    return found


def _rows(bench: Bench, rows: int, bad: int) -> DataFrame:
    """Rows in the JVM's memory; the bad ones lie evenly between the others."""
    marked = (
        f"id % {rows // bad} = {rows // bad // 2} and id < {rows // bad * bad}" if bad else "false"
    )
    frame = bench.spark.range(0, rows, 1, 4).selectExpr("id", f"{marked} as bad", "uuid() as text")
    return frame.localCheckpoint()


def _write(bench: Bench, frame: DataFrame, calls: list[int]) -> None:
    folder, made = bench.fresh("isolated"), 0

    @sg.foreach_batch
    def store(batch: DataFrame, batch_id: int, part: sg.SubBatch) -> None:  # noqa: ARG001
        nonlocal made
        made += 1
        # As a database does: it looks at every row, and refuses all for one.
        batch.selectExpr("if(bad, raise_error('refused'), id) as id", "text").write.mode(
            "overwrite"
        ).parquet(str(folder / part.transaction.rpartition("/")[2]))

    guard = bench.guard(store={"isolate": True, "writes": "upsert"})
    guard.foreach_batch(store)(frame, 0)
    calls.append(made)
