"""Isolation in front of a real database."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

import sparkguard as sg
from tests.spark.made import build, committed, guard, letters
from tests.support.postgres import Postgres

ROWS = 100_000
BAD = {123, 50_000, 99_998}

UPSERT = """
create temporary table fresh (like totals) on commit drop;
copy fresh from stdin with (format csv);
{rows}\\.
insert into totals select * from fresh on conflict (id) do update set total = excluded.total;
"""


@pytest.mark.slow
def test_three_of_a_hundred_thousand(spark: SparkSession, tmp_path: Path) -> None:
    """P6: an upsert into PostgreSQL, in which three rows break a constraint."""
    source = tmp_path / "in"
    bad = ", ".join(map(str, sorted(BAD)))
    spark.range(ROWS, numPartitions=8).selectExpr(
        "id", f"if(id in ({bad}), -1.0D, id * 0.5D) total"
    ).write.parquet(str(source))
    with Postgres() as database:
        database.sql(
            "create table totals (id bigint primary key, total float8 not null check (total >= 0))"
        )
        calls = []

        @sg.foreach_batch
        def store(batch: DataFrame, batch_id: int, rows: sg.SubBatch) -> None:
            calls.append(rows)
            found = "".join(f"{row.id},{row.total!r}\n" for row in batch.collect())
            database.sql(UPSERT.format(rows=found))

        made = guard(tmp_path, stages={"store": {"isolate": True, "writes": "upsert"}})
        frame = spark.readStream.schema("id long, total double").parquet(str(source))
        made.run(build(frame, tmp_path, made.foreach_batch(store)))
        there = database.sql("select id from totals order by id").split()

    assert committed(tmp_path) == [0]
    assert [int(one) for one in there] == [one for one in range(ROWS) if one not in BAD]
    found = letters(tmp_path)
    assert {json.loads(one.record.value or b"")["id"] for one in found} == BAD
    assert len(found) == 3
    assert all("totals_total_check" in one.failure.message for one in found)
    account = made.ledger.total("store")
    assert account.balanced
    assert (account.records_in, account.records_out) == (ROWS, ROWS - 3)
    assert len(calls) < 2 * 3 * 17 + 16
