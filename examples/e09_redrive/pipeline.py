"""Redrive: what had no rate became a letter; once it has one, it is sent back and comes through.

KAFKA=localhost:9092 python examples/e09_redrive/fill.py
KAFKA=localhost:9092 python examples/e09_redrive/pipeline.py
sparkguard dlq ls --config examples/e09_redrive/guard.yaml
KAFKA=localhost:9092 CHF=1.07 python examples/e09_redrive/pipeline.py
sparkguard dlq redrive --everything --config examples/e09_redrive/guard.yaml
KAFKA=localhost:9092 CHF=1.07 python examples/e09_redrive/pipeline.py
sparkguard audit --config examples/e09_redrive/guard.yaml \
    --checkpoint build/e09/checkpoint --output build/e09/out
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
OUT = Path(os.environ.get("OUT", "build/e09")).resolve()
SERVERS = os.environ.get("KAFKA", "localhost:9092")
PAYMENTS = os.environ.get("PAYMENTS", "payments")
AGAIN = os.environ.get("AGAIN", "payments.redrive")
RATES = {"EUR": 1.0, "USD": 0.9, "GBP": 1.2, "JPY": 0.006}
if "CHF" in os.environ:
    RATES["CHF"] = float(os.environ["CHF"])


class Payment(msgspec.Struct):
    """What a record's value should hold."""

    id: int
    cents: int
    currency: str


class Booked(msgspec.Struct):
    """What goes out."""

    id: int
    euros: float


decode = sg.deserialize(sg.Json(Payment), name="decode")


@sg.map
def book(payment: Payment) -> Booked:
    """A currency without a rate is a KeyError, and so a letter with the whole payment in it."""
    return Booked(payment.id, payment.cents * RATES[payment.currency] / 100)


@sg.foreach_batch
def store(batch: DataFrame, batch_id: int) -> None:
    """A folder for each batch; a batch that is tried again overwrites its own."""
    batch.write.mode("overwrite").parquet(f"{OUT}/out/{batch_id}")


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
    """Runs until everything that is in both topics now has been read."""
    spark = session()
    guard = sg.Guard.from_yaml(HERE / "guard.yaml")
    # An audit finds the records that came out by their coordinates.
    flow = guard.flow(decode, book, name="payments", carry=sg.ORIGIN)

    def build() -> StreamingQuery:
        payments = (
            spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", SERVERS)
            .option("subscribe", f"{PAYMENTS},{AGAIN}")
            .option("startingOffsets", "earliest")
            .option("includeHeaders", "true")  # headers count how often a record was sent back
            .load()
        )
        return (
            payments.transform(flow)
            .writeStream.foreachBatch(guard.foreach_batch(store))
            .option("checkpointLocation", str(OUT / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )

    guard.run(build)

    account = guard.ledger.total("payments")
    print(
        f"{account.records_in} in = {account.records_out} out"
        f" + {account.total('dead_lettered')} dead-lettered"
    )


if __name__ == "__main__":
    main()
