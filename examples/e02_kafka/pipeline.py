"""Kafka to Kafka: good orders to one topic, bad records, byte for byte, to another.

KAFKA=localhost:9092 python examples/e02_kafka/fill.py
KAFKA=localhost:9092 python examples/e02_kafka/pipeline.py
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import sparkguard as sg

HERE = Path(__file__).parent
OUT = Path(os.environ.get("OUT", "build/e02"))
SERVERS = os.environ.get("KAFKA", "localhost:9092")
ORDERS, PRICED = os.environ.get("ORDERS", "orders"), os.environ.get("PRICED", "orders.priced")


class Order(msgspec.Struct):
    """What a record's value should hold."""

    id: int
    amount: float


class Priced(msgspec.Struct):
    """What goes out."""

    id: int
    total: float
    partition: int


decode = sg.deserialize(sg.Json(Order), name="decode")


@sg.map
def price(order: Order, record: sg.Record) -> Priced:
    """Asks for the record beside the value, because it wants the record's partition."""
    if order.amount < 0:
        raise ValueError(f"order {order.id} has a negative amount")
    return Priced(order.id, order.amount * 1.2, record.partition or 0)


@sg.foreach_batch
def publish(batch: DataFrame, _batch_id: int) -> None:
    """Writes to Kafka, at least once: a batch that is tried again is sent again."""
    (
        # `carry=["key"]` below let the input's key travel along.
        batch.selectExpr("key", "to_json(struct(id, total, partition)) as value")
        .write.format("kafka")
        .option("kafka.bootstrap.servers", SERVERS)
        .option("topic", PRICED)
        .save()
    )


def session() -> SparkSession:
    """A session that knows Kafka; pyspark brings no connector."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]")
    if "KAFKA_JARS" in os.environ:
        builder = builder.config("spark.jars", os.environ["KAFKA_JARS"])
    else:
        connector = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0"
        builder = builder.config("spark.jars.packages", connector)
    return builder.getOrCreate()


def main() -> None:
    """Runs until everything that is in the topic now has been read."""
    spark = session()
    guard = sg.Guard.from_yaml(HERE / "guard.yaml")
    flow = guard.flow(decode, price, name="orders", carry=["key"])

    def build() -> StreamingQuery:
        orders = (
            spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", SERVERS)
            .option("subscribe", ORDERS)
            .option("startingOffsets", "earliest")
            .option("includeHeaders", "true")  # without it letters have no headers either
            .load()
        )
        return (
            orders.transform(flow)
            .writeStream.foreachBatch(guard.foreach_batch(publish))
            .option("checkpointLocation", str(OUT / "checkpoint"))
            .trigger(availableNow=True)
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


if __name__ == "__main__":
    main()
