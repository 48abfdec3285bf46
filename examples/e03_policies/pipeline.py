"""Policies: what happens depends on the stage, on the kind of trouble and on the exception.

python examples/e03_policies/pipeline.py
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from pathlib import Path

import duckdb
import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import sparkguard as sg

HERE = Path(__file__).parent
OUT = Path(os.environ.get("OUT", "build/e03"))
COUNT = 500


class Order(msgspec.Struct):
    """What a line of the input should hold."""

    id: int
    item: str


class OutOfSaleError(Exception):
    """Nobody needs to see these again: `by_exception` skips them."""


class SuspiciousError(Exception):
    """Somebody should look at these: `by_exception` dead-letters them."""


class ServiceBusyError(Exception):
    """Our own client's way to say "come back later": only `classify` can know that."""


# What a price service would remember: who asked how often.
asked: Counter[int] = Counter()

decode = sg.deserialize(sg.Json(Order), name="decode")


@sg.map
def price(order: Order) -> Order:
    """Meets every kind of trouble; which one follows from the item."""
    asked[order.id] += 1
    match order.item:
        case "old":
            raise OutOfSaleError(order.id)
        case "gold":
            raise SuspiciousError(f"order {order.id} was paid with card=4111111111111111")
        case "busy" if asked[order.id] < 3:
            raise ServiceBusyError("too many requests")
        case "down":
            raise ServiceBusyError("no end in sight")
        case _:
            pass
    return order


@sg.foreach_batch
def store(batch: DataFrame, batch_id: int) -> None:
    """Writes a folder a batch."""
    batch.write.mode("overwrite").parquet(str(OUT / "out" / str(batch_id)))


def line(number: int) -> str:
    """One line of input; what is wrong with it follows from its number."""
    if number % 50 == 7:
        return f'{{"id": {number}, "item": '
    items = {11: "old", 22: "gold", 33: "busy", 44: "down"}
    return json.dumps({"id": number, "item": items.get(number % 50, "book")})


def main() -> None:
    """Runs the pipeline over generated orders, and shows what became of them."""
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

    for stage, facts in guard.ledger.total("orders").stages.items():
        print(f"{stage}: " + ", ".join(f"{fact} {count}" for fact, count in facts.items() if count))
    letters = [f"{OUT}/{folder}/**/*.parquet" for folder in ("dead-letters", "unreadable")]
    print(
        duckdb.sql(
            "select stage, cause, exception_type, message, attempts, count(*) as letters"
            f" from read_parquet({letters}) group by all order by all limit 5"
        )
    )


if __name__ == "__main__":
    main()
