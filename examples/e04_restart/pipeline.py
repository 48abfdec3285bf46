"""Restart: a service is down for a while, the supervisor starts the query again, nothing is lost.

python examples/e04_restart/pipeline.py               # down for 5 calls: it comes back in time
OUTAGE=99 python examples/e04_restart/pipeline.py     # too long: the limit is met, exit code 75
"""

from __future__ import annotations

import json
import logging
import os
import sys
from pathlib import Path

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import sparkguard as sg

HERE = Path(__file__).parent
OUT = Path(os.environ.get("OUT", "build/e04")).absolute()
OUTAGE = int(os.environ.get("OUTAGE", "5"))
COUNT = 100


class Order(msgspec.Struct):
    """What a line of the input should hold."""

    id: int


decode = sg.deserialize(sg.Json(Order), name="decode")


def call_service(calls: Path, outage: int) -> None:
    """A service that is down for the first calls; it counts them in a file."""
    done = int(calls.read_text()) if calls.exists() else 0
    calls.write_text(str(done + 1))
    if done < outage:
        raise ConnectionError("the service is down")


@sg.map
def enrich(order: Order) -> Order:
    """A ConnectionError is known to be transient: an outage is nobody's dead letter."""
    call_service(OUT / "calls", OUTAGE)
    return order


@sg.foreach_batch
def store(batch: DataFrame, batch_id: int) -> None:
    """Writes a folder a batch."""
    batch.write.mode("overwrite").parquet(str(OUT / "out" / str(batch_id)))


def main() -> None:
    """Runs the pipeline; the log tells of restarts."""
    logging.basicConfig(format="%(levelname)s %(message)s")
    logging.getLogger("sparkguard").setLevel(logging.INFO)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    # One core, because the service above cannot count for two.
    spark = SparkSession.builder.master("local[1]").getOrCreate()
    (OUT / "in").mkdir(parents=True, exist_ok=True)
    orders = OUT / "in" / "orders.jsonl"
    if not orders.exists():
        orders.write_text("\n".join(json.dumps({"id": number}) for number in range(COUNT)))

    guard = sg.Guard.from_yaml(HERE / "guard.yaml")
    flow = guard.flow(decode, enrich, name="orders")

    # Called once more for every restart: the query is built anew, on the same checkpoint.
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
    print(f"{account.records_in} in = {account.records_out} out, after {OUTAGE} failed calls")


if __name__ == "__main__":
    main()
