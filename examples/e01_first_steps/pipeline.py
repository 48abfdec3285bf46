"""First steps: orders from files, two of them unreadable, one against the rules.

    python examples/e01_first_steps/pipeline.py

Run it twice: the second time there is nothing new, because the checkpoint remembers.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import duckdb
import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import sparkguard as sg

HERE = Path(__file__).parent
OUT = Path(os.environ.get("OUT", "build/e01"))


class Order(msgspec.Struct):
    """What a line of the input should hold."""

    id: int
    item: str
    amount: float


class Priced(msgspec.Struct):
    """What goes out: one column a field."""

    id: int
    item: str
    total: float


decode = sg.deserialize(sg.Json(Order), name="decode")


@sg.map
def price(order: Order) -> Priced:
    """Adds the tax; an ordinary function, which a unit test may call as it is."""
    if order.amount < 0:
        raise ValueError(f"order {order.id} has a negative amount")
    return Priced(order.id, order.item, round(order.amount * 1.2, 2))


@sg.filter
def worth_it(priced: Priced) -> bool:
    """Drops what costs less than a letter."""
    return priced.total >= 1


@sg.foreach_batch
def store(batch: DataFrame, batch_id: int) -> None:
    """Writes a folder a batch: a batch that comes again overwrites its own."""
    batch.write.mode("overwrite").parquet(str(OUT / "out" / str(batch_id)))


def main() -> None:
    """Runs the pipeline over everything that is there, and shows what became of it."""
    # Otherwise Spark starts its workers with whatever python3 comes first.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = SparkSession.builder.master("local[2]").getOrCreate()

    guard = sg.Guard.from_yaml(HERE / "guard.yaml")
    flow = guard.flow(decode, price, worth_it, name="orders")

    def build() -> StreamingQuery:
        orders = spark.readStream.text(str(HERE / "data"))
        return (
            orders.transform(flow)
            .writeStream.foreachBatch(guard.foreach_batch(store))
            .option("checkpointLocation", str(OUT / "checkpoint"))
            .trigger(availableNow=True)  # without it the query waits for more, until SIGTERM
            .start()
        )

    guard.run(build)

    account = guard.ledger.total("orders")
    print(
        f"{account.records_in} in = {account.records_out} out"
        f" + {account.total('filtered')} filtered"
        f" + {account.total('skipped')} skipped"
        f" + {account.total('dead_lettered')} dead-lettered"
    )
    letters = f"{OUT}/dead-letters/**/*.parquet"
    print(duckdb.sql(f"select stage, decode(value) as value, message from '{letters}'"))


if __name__ == "__main__":
    main()
