"""To Kafka from the workers: one order is too large for the topic, and only that one stays behind.

KAFKA=localhost:9092 python examples/e07_produce/pipeline.py
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import duckdb
import msgspec
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import sparkguard as sg

HERE = Path(__file__).parent
OUT = Path(os.environ.get("OUT", "build/e07"))
SERVERS = os.environ.get("KAFKA", "localhost:9092")
ORDERS = os.environ.get("ORDERS", "orders.out")
COUNT = 1000
LARGE = 500


class Order(msgspec.Struct):
    """What a line of the input should hold."""

    id: int
    country: str
    note: str


decode = sg.deserialize(sg.Json(Order), name="decode")

out = sg.produce(
    name="out",
    topic=ORDERS,
    key="id",
    value=sg.Json(),  # the whole row
    headers={"order-id": "id", "country": "country", "schema": b"1"},
)


@sg.map
def polite(order: Order) -> Order:
    """Adds a greeting."""
    return Order(order.id, order.country, f"Hello, {order.note}")


def line(number: int) -> str:
    """One line of input."""
    note = "x" * 2_000_000 if number == LARGE else f"order {number}"
    return json.dumps({"id": number, "country": ("DE", "FR")[number % 2], "note": note})


def make_topic() -> None:
    """Makes the topic if it is missing."""
    admin = AdminClient({"bootstrap.servers": SERVERS})
    if ORDERS not in admin.list_topics(timeout=10).topics:
        admin.create_topics([NewTopic(ORDERS, 4, 1)])[ORDERS].result(10)


def main() -> None:
    """Runs the pipeline over generated orders, and shows what became of them."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    make_topic()
    # No connector is needed: the workers send with confluent-kafka.
    spark = SparkSession.builder.master("local[2]").getOrCreate()
    (OUT / "in").mkdir(parents=True, exist_ok=True)
    (OUT / "in" / "orders.jsonl").write_text("\n".join(map(line, range(COUNT))))

    guard = sg.Guard.from_yaml(HERE / "guard.yaml")
    flow = guard.flow(decode, polite, name="orders", carry=sg.ORIGIN)
    production = guard.produce(out)

    def build() -> StreamingQuery:
        orders = spark.readStream.text(str(OUT / "in")).transform(flow)
        return (
            production.stream(orders)
            .option("checkpointLocation", str(OUT / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )

    guard.run(build)

    total = guard.ledger.total("out")
    print(f"{total.records_in:,} in = {total.records_out:,} out", end=" ")
    print(f"+ {total.total('dead_lettered'):,} dead-lettered")
    letters = f"{OUT}/dead-letters/**/*.parquet"
    print(duckdb.sql(f"select stage, category, message from '{letters}'"))


if __name__ == "__main__":
    main()
