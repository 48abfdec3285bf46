"""Isolation: an upsert into a database fails because of two rows; the others are written.

python examples/e08_isolation/pipeline.py
"""

from __future__ import annotations

import json
import os
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import duckdb
import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import sparkguard as sg

HERE = Path(__file__).parent
OUT = Path(os.environ.get("OUT", "build/e08"))
COUNT = 400
BAD = (17, 300)


class Payment(msgspec.Struct):
    """What a line of the input should hold."""

    id: int
    cents: int


decode = sg.deserialize(sg.Json(Payment), name="decode")


@sg.foreach_batch
def store(batch: DataFrame, batch_id: int, part: sg.SubBatch) -> None:
    """One transaction for the rows it is given: all of a batch, or some of a batch that failed.

    The table refuses what is not positive. A row that is written again overwrites itself.
    """
    rows = [(row.id, row.cents, batch_id, part.transaction) for row in batch.toLocalIterator()]
    with closing(connect()) as database, database:
        database.executemany(
            "insert into payment values (?, ?, ?, ?) on conflict (id) do update"
            " set cents = excluded.cents, batch = excluded.batch, part = excluded.part",
            rows,
        )


def connect() -> sqlite3.Connection:
    """The database, with its table."""
    database = sqlite3.connect(OUT / "payments.db")
    database.execute(
        "create table if not exists payment"
        " (id integer primary key, cents integer check (cents > 0), batch integer, part text)"
    )
    return database


def line(number: int) -> str:
    """One line of input."""
    return json.dumps({"id": number, "cents": -1 if number in BAD else 100 + number})


def main() -> None:
    """Runs the pipeline over generated payments, and shows what became of them."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = SparkSession.builder.master("local[2]").getOrCreate()
    (OUT / "in").mkdir(parents=True, exist_ok=True)
    (OUT / "in" / "payments.jsonl").write_text("\n".join(map(line, range(COUNT))))

    guard = sg.Guard.from_yaml(HERE / "guard.yaml")
    flow = guard.flow(decode, name="payments", carry=sg.ORIGIN)

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

    with closing(connect()) as database:
        (written,) = database.execute("select count(*) from payment").fetchone()
    print(f"{COUNT} in = {written} written + {COUNT - written} dead-lettered")
    letters = f"{OUT}/dead-letters/**/*.parquet"
    print(duckdb.sql(f"select stage, message, decode(value) as row from '{letters}' order by 3"))


if __name__ == "__main__":
    main()
