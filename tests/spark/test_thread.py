"""One thread through all of it: files in, three stages, files out, letters, ledger."""

from __future__ import annotations

import json
from pathlib import Path

import duckdb
import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import sparkguard as sg


class Order(msgspec.Struct):
    id: int
    amount: float


class Priced(msgspec.Struct):
    id: int
    total: float


decode = sg.deserialize(sg.Json(Order), name="decode")


@sg.map
def price(order: Order) -> Priced:
    """The business rule."""
    if order.amount < 0:
        raise ValueError(f"negative amount {order.amount}")
    return Priced(order.id, order.amount * 1.2)


@sg.filter
def worth_it(priced: Priced) -> bool:
    """Small orders are filtered."""
    return priced.total >= 12


def lines(count: int) -> list[str]:
    """Orders of which 1 % do not parse, 1 % break the rule and 10 % are small."""
    out = []
    for n in range(count):
        if n % 100 == 7:
            out.append(f'{{"id": {n}, "amount": ')
        elif n % 100 == 13:
            out.append(json.dumps({"id": n, "amount": -1.0}))
        elif n % 10 == 5:
            out.append(json.dumps({"id": n, "amount": 1.0}))
        else:
            out.append(json.dumps({"id": n, "amount": 20.0}))
    return out


def test_files_to_files(spark: SparkSession, tmp_path: Path) -> None:
    """P1, P4: every record is in the output, in a letter or filtered, and the ledger says so."""
    source = tmp_path / "in"
    source.mkdir()
    for part in range(4):
        (source / f"{part}.txt").write_text("\n".join(lines(1000)) + "\n")
    settings = sg.Settings(
        app="thread",
        state={"path": str(tmp_path / "state")},
        sinks={"default": {"type": "file", "path": str(tmp_path / "dead")}},
    )
    guard = sg.Guard(settings)
    flow = guard.flow(decode, price, worth_it, name="orders")

    def write(batch: DataFrame, batch_id: int) -> None:
        batch.write.mode("overwrite").parquet(str(tmp_path / "out" / str(batch_id)))

    frame = spark.readStream.format("text").option("maxFilesPerTrigger", 2).load(str(source))

    def build() -> StreamingQuery:
        return (
            frame.transform(flow)
            .writeStream.foreachBatch(guard.foreach_batch(write))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )

    guard.run(build)

    out = spark.read.parquet(str(tmp_path / "out" / "*")).count()
    found = f"'{tmp_path}/dead/**/*.parquet'"
    letters = duckdb.execute(
        f"select stage, count(*), count(distinct id) from {found} group by 1 order by 1"
    ).fetchall()
    total = guard.ledger.total("orders")
    assert letters == [("decode", 40, 40), ("price", 40, 40)]
    assert total.records_in == 4000
    assert total.records_out == out == 4000 - 80 - 400
    assert total.total("filtered") == 400
    assert total.total("dead_lettered") == 80
    assert total.balanced
    assert len(guard.ledger.batches("orders")) == 2
