"""Guarded flows over small frames, and the letters that they leave."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import sparkguard as sg
from sparkguard.core.letter_row import letter_from_row

ROW = (
    "key binary, value binary, headers array<struct<key:string,value:binary>>, "
    "topic string, partition int, offset long, timestamp timestamp"
)
"""The columns of Spark's Kafka source, with headers."""

_KAFKA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
    ]
)


class Order(msgspec.Struct):
    """What comes in."""

    id: int
    amount: float = 1.0


class Priced(msgspec.Struct):
    """What comes out."""

    id: int
    total: float


decode = sg.deserialize(sg.Json(Order), name="decode")


@sg.map
def price(order: Order) -> Priced:
    """The business rule: no order is negative."""
    if order.amount < 0:
        raise ValueError(f"order {order.id} has a negative amount")
    return Priced(order.id, order.amount * 2)


def guard(folder: Path, **more: Any) -> sg.Guard:
    """A guard whose letters and state lie in the folder."""
    made = {
        "app": "app",
        "state": {"path": str(folder / "state")},
        "sinks": {"default": {"type": "file", "path": str(folder / "dead")}},
    }
    return sg.Guard(sg.Settings(**(made | more)))


def letters(folder: Path, name: str = "dead") -> list[sg.Letter]:
    """The letters in the folder's files, by coordinates and value; each id once."""
    if not (folder / name).exists():
        return []
    rows = ds.dataset(folder / name, format="parquet", partitioning=None).to_table().to_pylist()
    found = {row["id"]: letter_from_row(row) for row in rows}
    return sorted(found.values(), key=lambda it: (it.record.coordinates, it.record.value or b""))


def orders(count: int, bad: Iterable[int] = (), negative: Iterable[int] = ()) -> list[str]:
    """Orders as JSON lines: some do not parse, some break the rule."""
    no_json, below = set(bad), set(negative)
    return [
        f'{{"id": {n}, '
        if n in no_json
        else msgspec.json.encode(Order(n, -1.0 if n in below else 1.0)).decode()
        for n in range(count)
    ]


def frame(spark: SparkSession, values: Sequence[Any], partitions: int = 1) -> DataFrame:
    """A batch frame with one column `value`."""
    kind = "binary" if any(isinstance(value, bytes) for value in values) else "string"
    rows = [(value,) for value in values]
    return spark.createDataFrame(rows, f"value {kind}").coalesce(partitions)


def kafka_rows(values: Sequence[str | None], partition: int = 0, first: int = 0) -> list[Any]:
    """Rows as Spark's Kafka source gives them."""
    return [
        (
            b"k%d" % n,
            None if value is None else value.encode(),
            [("n", b"%d" % n)],
            "orders",
            partition,
            n,
            None,
        )
        for n, value in enumerate(values, start=first)
    ]


def stream(spark: SparkSession, folder: Path, *batches: Sequence[str]) -> DataFrame:
    """A stream of text lines; every list of them is one micro-batch of two files."""
    source = folder / "in"
    source.mkdir(exist_ok=True)
    for number, lines in enumerate(batches):
        for half in range(2):
            file = source / f"{number}-{half}.txt"
            file.write_text("".join(f"{line}\n" for line in lines[half::2]))
            _in_turn(file, number)
    return spark.readStream.format("text").option("maxFilesPerTrigger", 2).load(str(source))


def kafka_stream(spark: SparkSession, folder: Path, *batches: Sequence[str]) -> DataFrame:
    """A stream of rows like Kafka's, two partitions; every list of values is one micro-batch."""
    source = folder / "in"
    source.mkdir(exist_ok=True)
    first = 0
    for number, values in enumerate(batches):
        for partition in range(2):
            rows = kafka_rows(values[partition::2], partition, first)
            file = source / f"{number}-{partition}.parquet"
            pq.write_table(pa.Table.from_pylist(list(map(_as_dict, rows)), _KAFKA), file)
            _in_turn(file, number)
        first += len(values)
    return (
        spark.readStream.schema(ROW)
        .format("parquet")
        .option("maxFilesPerTrigger", 2)
        .load(str(source))
    )


def _in_turn(file: Path, number: int) -> None:
    """Spark reads files in the order of their times."""
    at = 1_700_000_000 + number
    os.utime(file, (at, at))


def _as_dict(row: tuple[Any, ...]) -> dict[str, Any]:
    found = dict(zip(_KAFKA.names, row, strict=True))
    found["headers"] = [{"key": key, "value": value} for key, value in found["headers"]]
    return found


def build(
    guarded: DataFrame,
    folder: Path,
    batch_function: Callable[[DataFrame, int], None],
    mode: str = "append",
) -> Callable[[], StreamingQuery]:
    """What starts the query over everything there is."""

    def query() -> StreamingQuery:
        return (
            guarded.writeStream.foreachBatch(batch_function)
            .outputMode(mode)
            .option("checkpointLocation", str(folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )

    return query


def write(folder: Path) -> Callable[[DataFrame, int], None]:
    """A batch function that writes files by batch."""
    out = str(folder / "out")

    def store(batch: DataFrame, batch_id: int) -> None:
        batch.write.mode("overwrite").parquet(f"{out}/{batch_id}")

    return store


def committed(folder: Path) -> list[int]:
    """The batches that Spark has committed."""
    commits = folder / "checkpoint" / "commits"
    return sorted(int(file.name) for file in commits.glob("[0-9]*")) if commits.exists() else []


def failed(frame: DataFrame) -> sg.StageFailedError:
    """The failure that ends a batch job over this frame."""
    with pytest.raises(PySparkException) as got:
        frame.collect()
    found = sg.StageFailedError.find(str(got.value))
    assert found is not None
    return found
