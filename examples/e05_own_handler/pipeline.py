"""Your own handler: failed orders of important customers are kept, others are only counted.

pip install examples/e05_own_handler/plugin
python examples/e05_own_handler/pipeline.py
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import duckdb
import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import sparkguard as sg

HERE = Path(__file__).parent
OUT = Path(os.environ.get("OUT", "build/e05"))
COUNT = 200


class Order(msgspec.Struct):
    """What a line of the input should hold."""

    id: int
    amount: float
    vip: bool = False


decode = sg.deserialize(sg.Json(Order), name="decode")


@sg.map
def price(order: Order) -> Order:
    """Every tenth order breaks the rule."""
    if order.amount < 0:
        raise ValueError(f"order {order.id} has a negative amount")
    return order


@sg.foreach_batch
def store(batch: DataFrame, batch_id: int) -> None:
    """Writes a folder a batch."""
    batch.write.mode("overwrite").parquet(str(OUT / "out" / str(batch_id)))


def line(number: int) -> str:
    """One line of input; every third order is of an important customer."""
    amount = -1.0 if number % 10 == 4 else 9.5
    return json.dumps({"id": number, "amount": amount, "vip": number % 3 == 0})


def main() -> None:
    """Runs the pipeline over generated orders, and shows which letters were kept."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = SparkSession.builder.master("local[2]").getOrCreate()
    (OUT / "in").mkdir(parents=True, exist_ok=True)
    (OUT / "in" / "orders.jsonl").write_text("\n".join(map(line, range(COUNT))))

    guard = sg.Guard.from_yaml(HERE / "guard.yaml")
    flow = guard.flow(decode, price, name="orders")

    def build() -> StreamingQuery:
        return (
            spark.readStream.text(str(OUT / "in"))
            .transform(flow)
            .writeStream.foreachBatch(guard.foreach_batch(store))
            .option("checkpointLocation", str(OUT / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )

    guard.run(build)

    account = guard.ledger.total("orders")
    print(
        f"{account.records_in} in = {account.records_out} out"
        f" + {account.total('skipped')} skipped"
        f" + {account.total('dead_lettered')} dead-lettered"
    )
    print(duckdb.sql(f"select decode(value) as value, message from '{OUT}/urgent/**/*.parquet'"))


if __name__ == "__main__":
    main()
