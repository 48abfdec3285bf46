"""Vectorised functions: pandas over thousands of rows at once, of which three are bad.

python examples/e06_map_batches/pipeline.py
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import duckdb
import msgspec
import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import sparkguard as sg

HERE = Path(__file__).parent
OUT = Path(os.environ.get("OUT", "build/e06"))
COUNT = 5000
BAD = (17, 2500, 2501)


class Order(msgspec.Struct):
    """What a line of the input should hold."""

    id: int
    category: str
    amount: float


decode = sg.deserialize(sg.Json(Order), name="decode")


@sg.map_batches(returns="id long, score double")
def score(orders: pd.DataFrame) -> pd.DataFrame:
    """A model that raises for a category it was not trained with, and does not say where."""
    weights = {"book": 1.0, "pen": 0.5}
    unknown = set(orders["category"]) - set(weights)
    if unknown:
        raise ValueError(f"unknown categories: {unknown}")
    made = orders["amount"] * orders["category"].map(weights)
    return pd.DataFrame({"id": orders["id"], "score": made})


@sg.foreach_batch
def store(batch: DataFrame, batch_id: int) -> None:
    """Writes a folder a batch."""
    batch.write.mode("overwrite").parquet(str(OUT / "out" / str(batch_id)))


def line(number: int) -> str:
    """One line of input."""
    category = "sofa" if number in BAD else ("book", "pen")[number % 2]
    return json.dumps({"id": number, "category": category, "amount": 10})


def main() -> None:
    """Runs the pipeline over generated orders, and shows what became of them."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = SparkSession.builder.master("local[2]").getOrCreate()
    (OUT / "in").mkdir(parents=True, exist_ok=True)
    (OUT / "in" / "orders.jsonl").write_text("\n".join(map(line, range(COUNT))))

    guard = sg.Guard.from_yaml(HERE / "guard.yaml")
    flow = guard.flow(decode, score, name="scores")

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

    total = guard.ledger.total("scores")
    print(f"{total.records_in:,} in = {total.records_out:,} out", end=" ")
    print(f"+ {total.total('dead_lettered'):,} dead-lettered")
    letters = f"{OUT}/dead-letters/**/*.parquet"
    print(duckdb.sql(f"select stage, message, decode(value) as value from '{letters}' order by 3"))


if __name__ == "__main__":
    main()
