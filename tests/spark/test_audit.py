"""The audit over a query that has really run."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import sparkguard as sg
from sparkguard.audit.check import Audit, Verdict
from tests.spark.made import decode, guard, kafka_stream, orders, price

LINES = orders(40, bad=[3, 17], negative=[8])


@sg.filter
def even(priced: object) -> bool:
    """Half of them."""
    return priced.id % 2 == 0  # type: ignore[attr-defined, no-any-return]


def wrong(found: Audit) -> dict[str, Verdict]:
    """What does not add up."""
    return {
        f"{check.kind} {check.of}": check.verdict
        for check in found.checks
        if not check.verdict.fine
    }


def test_spark_s_own_sink(spark: SparkSession, tmp_path: Path) -> None:
    """P1: letters, and what Spark's file sink has committed, are all there, or are named."""
    made = guard(tmp_path)
    flow = made.flow(decode, price, even, name="main", carry=sg.ORIGIN)
    rows = kafka_stream(spark, tmp_path, LINES, orders(10)).transform(flow)
    checkpoint, out = str(tmp_path / "checkpoint"), tmp_path / "out"

    def query() -> StreamingQuery:
        return (
            rows.writeStream.format("parquet")
            .option("path", str(out))
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )

    made.run(query)

    def audit() -> Audit:
        return made.audit(checkpoints=[checkpoint], outputs=[str(out)])

    found = audit()
    assert wrong(found) == {}
    numbers = {f"{it.kind} {it.of}": (it.expected, it.found) for it in found.checks}
    assert numbers["account main"] == (50, 50)
    assert numbers["letters main.decode"] == (2, 2)
    assert numbers["output rows"] == (24, 24)
    letter = next((tmp_path / "dead").rglob("*.parquet"))
    letter.rename(tmp_path / "letter")
    assert all(name.startswith("letters main.") for name in wrong(audit()))
    assert wrong(audit())
    (tmp_path / "letter").rename(letter)
    row = next(it for it in out.glob("part-*.parquet") if it.stat().st_size > 0)
    row.unlink()
    assert set(wrong(audit())) == {"output rows", f"reading {row}"}
