"""What the tests of produce share: a guard, a stage, orders, and what became of them."""

from pathlib import Path
from typing import Any

import duckdb
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import sparkguard as sg
from tests.support.kafka import Broker

ORDERS = 2_000
BIG = 1_234
MEGABYTES = 2_000_000


def made(folder: Path, **stages: Any) -> sg.Guard:
    """A guard with file letters below the folder."""
    sink = {"type": "file", "path": str(folder / "letters")}
    return sg.Guard(
        sg.Settings(
            app="produce",
            state={"path": str(folder / "state")},
            sinks={"default": sink},
            stages=stages,
        )
    )


def out(broker: Broker, **more: Any) -> sg.Stage[..., Any]:
    """The stage `out`: orders as JSON, by id."""
    servers = {"bootstrap.servers": broker.servers, **more.pop("producer", {})}
    given = {"key": "id", "value": sg.Json(), **more}
    return sg.produce(name="out", producer=servers, **given)


def orders(spark: SparkSession, count: int = ORDERS) -> DataFrame:
    """Rows with an id and a note of a few bytes."""
    return spark.range(count, numPartitions=2).select(
        "id", f.concat(f.lit("note "), f.col("id")).alias("note")
    )


def with_a_big_one(frame: DataFrame, size: int = MEGABYTES) -> DataFrame:
    """The same, and one row of 2 MB."""
    big = f.when(f.col("id") == BIG, f.repeat(f.lit("x"), size)).otherwise(f.col("note"))
    return frame.withColumn("note", big)


def arrived(broker: Broker, topic: str) -> dict[bytes | None, bytes | None]:
    """Values by key; a key that arrived twice fails the test."""
    messages = broker.read_all(topic)
    found = {message.key: message.value for message in messages}
    assert len(found) == len(messages)
    return found


def expected(*without: int) -> dict[bytes | None, bytes | None]:
    """What `orders` must be in the topic."""
    return {
        b"%d" % n: b'{"id":%d,"note":"note %d"}' % (n, n) for n in range(ORDERS) if n not in without
    }


def letters(folder: Path, columns: str) -> list[tuple[Any, ...]]:
    """Columns of the stored letters."""
    files = list((folder / "letters").rglob("*.parquet"))
    if not files:
        return []
    listed = ", ".join(f"'{file}'" for file in files)
    return duckdb.execute(f"select {columns} from read_parquet([{listed}]) order by 1").fetchall()


def counts(guard: sg.Guard) -> tuple[int, int, int, int]:
    """In, out, skipped and dead-lettered of the stage `out`."""
    total = guard.ledger.total("out")
    assert total.balanced
    return total.records_in, total.records_out, total.total("skipped"), total.total("dead_lettered")
