"""Rows that are not Kafka's, and types of every kind, through real Spark to Parquet and back."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pydantic
import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as f

import sparkguard as sg
from tests.spark.made import ROW, decode, guard, kafka_rows, letters, stream

BERLIN = dt.timezone(dt.timedelta(hours=2))


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Item(msgspec.Struct):
    sku: str
    price: Decimal
    tags: list[str] = []


class Everything(msgspec.Struct):
    """A field of every kind that Spark has a type for."""

    id: int
    ratio: float
    good: bool
    name: str
    raw: bytes
    amount: Annotated[Decimal, "decimal(12,3)"]
    day: dt.date
    at: dt.datetime
    took: dt.timedelta
    colour: Colour
    level: Level
    items: list[Item]
    counts: dict[str, int]
    matrix: list[list[float]]
    by_day: dict[dt.date, Item]
    note: str | None = None
    other: Item | None = None


def everything(n: int) -> Everything:
    """Number n of them; every second has its optional fields."""
    item = Item(f"sku-{n}", Decimal("9.99"), ["a", "b"] if n % 2 else [])
    return Everything(
        id=2**60 + n,
        ratio=n / 3,
        good=n % 2 == 0,
        name=f"ü{n}\u0000\U0001f600",
        raw=bytes(range(n, n + 5)),
        amount=Decimal(n).scaleb(-3),
        day=dt.date(1900, 1, 1) + dt.timedelta(days=n),
        at=dt.datetime(2024, 3, 31, 2, 30, 0, 123456 + n, tzinfo=BERLIN),
        took=dt.timedelta(days=-1, microseconds=n),
        colour=Colour.RED if n % 2 else Colour.BLUE,
        level=Level.HIGH,
        items=[item] * (n % 3),
        counts={f"k{i}": i for i in range(n % 3)},
        matrix=[[1.0, n], []],
        by_day={dt.date(2024, 1, 1): item},
        note=f"note {n}" if n % 2 else None,
        other=item if n % 2 else None,
    )


@sg.map
def make(n: int) -> Everything:
    """Number n, but for one that breaks the rule."""
    if n == 3:
        raise ValueError("not the third")
    return everything(n)


@sg.map
def same(one: Everything) -> Everything:
    """Read from rows again, and written again."""
    return one


def expected(n: int) -> dict[str, Any]:
    """What Parquet must give back for number n, as Spark shows it in UTC."""
    made = msgspec.structs.asdict(everything(n))
    for item in [*made["items"], *made["by_day"].values(), made["other"]]:
        if item is not None:
            assert isinstance(item, Item)
    made["colour"], made["level"] = made["colour"].value, made["level"].value
    made["items"] = [plain(item) for item in made["items"]]
    made["by_day"] = {day: plain(item) for day, item in made["by_day"].items()}
    made["other"] = made["other"] and plain(made["other"])
    return made


def plain(item: Item) -> dict[str, Any]:
    """An item as the dict of a row; decimals have the 18 places that Spark gives them."""
    return {"sku": item.sku, "price": item.price, "tags": item.tags}


def shown(row: Row) -> dict[str, Any]:
    """A row as plain Python, with its instant in UTC."""
    found = row.asDict(recursive=True)
    found["raw"] = bytes(found["raw"])
    # Spark's Python gives the instant in the zone of the machine, without saying so.
    found["at"] = found["at"].astimezone(dt.UTC)
    return found


def test_every_type_to_parquet_and_back(spark: SparkSession, tmp_path: Path) -> None:
    """P1: what a stage gave is what Parquet has, and what a flow over Parquet gets again."""
    made = guard(tmp_path)
    numbers = spark.range(6).repartition(2)
    first, second = str(tmp_path / "first"), str(tmp_path / "second")

    numbers.transform(made.flow(make, name="make")).write.parquet(first)
    again = spark.read.parquet(first)
    again.transform(made.flow(same, name="same")).write.parquet(second)

    assert again.schema == spark.read.parquet(second).schema
    for path in (first, second):
        rows = sorted(spark.read.parquet(path).collect(), key=lambda row: int(row.id))
        assert [shown(row) for row in rows] == [expected(n) for n in range(6) if n != 3]
    assert made.ledger.total("same").records_out == 5
    (letter,) = letters(tmp_path)
    assert json.loads(letter.record.columns or "") == {"id": 3}


def test_what_spark_makes_of_the_types(spark: SparkSession, tmp_path: Path) -> None:
    """The schema of a flow is the one that the annotations promise, names and nulls included."""
    flow = guard(tmp_path).flow(make, name="make")

    fields = {field.name: field for field in spark.range(1).transform(flow).schema}

    assert {name: field.dataType.simpleString() for name, field in fields.items()} == {
        "id": "bigint",
        "ratio": "double",
        "good": "boolean",
        "name": "string",
        "raw": "binary",
        "amount": "decimal(12,3)",
        "day": "date",
        "at": "timestamp",
        "took": "interval day to second",
        "colour": "string",
        "level": "bigint",
        "items": "array<struct<sku:string,price:decimal(38,18),tags:array<string>>>",
        "counts": "map<string,bigint>",
        "matrix": "array<array<double>>",
        "by_day": "map<date,struct<sku:string,price:decimal(38,18),tags:array<string>>>",
        "note": "string",
        "other": "struct<sku:string,price:decimal(38,18),tags:array<string>>",
    }
    assert {name for name, field in fields.items() if field.nullable} == {"note", "other"}


# --- what a map may take --------------------------------------------------------------------------


class OrderStruct(msgspec.Struct):
    id: int
    amount: float


@dataclasses.dataclass
class OrderData:
    id: int
    amount: float


class OrderModel(pydantic.BaseModel):
    id: int
    amount: float = pydantic.Field(ge=0)


def _total(order_id: int, amount: float) -> float:
    if amount < 0:
        raise ValueError(f"order {order_id} is negative")
    return amount * 2


def of_row(row: Row) -> float:
    """A row of Spark's own."""
    return _total(row.id, row.amount)


def of_any(row: Any) -> float:
    """Nothing said: a row."""
    return _total(row["id"], row.amount)


def of_dict(row: dict[str, Any]) -> float:
    """A dict."""
    return _total(row["id"], row["amount"])


def of_struct(order: OrderStruct) -> float:
    """A msgspec struct."""
    return _total(order.id, order.amount)


def of_data(order: OrderData) -> float:
    """A dataclass."""
    return _total(order.id, order.amount)


def of_model(order: OrderModel) -> float:
    """A pydantic model, which has a rule of its own."""
    return _total(order.id, order.amount)


def typed(spark: SparkSession) -> DataFrame:
    """Ten orders; the fourth is negative, and of the sixth the amount is missing."""
    rows = [(n, -1.0 if n == 3 else None if n == 5 else float(n), f"extra {n}") for n in range(10)]
    return spark.createDataFrame(rows, "id long, amount double, more string").repartition(2)


@pytest.mark.parametrize("function", [of_row, of_any, of_dict, of_struct, of_data, of_model])
def test_what_a_map_takes(
    spark: SparkSession, tmp_path: Path, function: Callable[..., float]
) -> None:
    """P6: rows become what the stage takes; those that do not are letters that hold the row."""
    made = guard(tmp_path)

    out = typed(spark).transform(made.flow(sg.map(function), name="typed")).collect()

    assert sorted(row.value for row in out) == [2.0 * n for n in range(10) if n not in {3, 5}]
    found = {json.loads(letter.record.columns or "")["id"]: letter for letter in letters(tmp_path)}
    assert set(found) == {3, 5}
    assert json.loads(found[3].record.columns or "") == {
        "id": 3,
        "amount": -1.0,
        "more": "extra 3",
    }
    for letter in found.values():
        assert letter.failure.stage == function.__name__
        assert letter.failure.category is sg.Category.PROCESSING
        assert letter.record.value is None
    assert made.ledger.total("typed").balanced


def test_values_and_what_stands_beside_them(spark: SparkSession, tmp_path: Path) -> None:
    """P1: a frame with a value and other columns: the letter has both, of whatever type."""
    made = guard(tmp_path)
    frame = spark.sql(
        "select '{' value, 7 id, timestamp'2024-01-01 00:00:00Z' at, X'ff00' raw, "
        "array(named_struct('a', 1.50BD)) items, map('k', date'2024-01-01') days, null nothing"
    )

    flow = made.flow(sg.deserialize(sg.Json("x long")), name="beside", carry="id")
    assert frame.transform(flow).collect() == []

    (letter,) = letters(tmp_path)
    assert letter.record.value == b"{"
    columns = json.loads(letter.record.columns or "")
    assert set(columns) == {"id", "at", "raw", "items", "days", "nothing"}
    assert columns["id"] == 7
    assert columns["at"].startswith("2024-01-01")
    assert columns["raw"] == "/wA="
    assert columns["items"] == [{"a": "1.50"}]
    assert columns["nothing"] is None


@pytest.mark.parametrize("function", [of_row, of_dict, of_struct])
@pytest.mark.parametrize(
    ("value", "kept"),
    [
        ("date'+10000-01-01'", "10000-01-01"),
        ("timestamp'-0010-01-01 00:00:00Z'", "-0010-01-01 00:00:00.000000"),
        ("array(named_struct('a', date'+10000-01-01'))", [{"a": "10000-01-01"}]),
        ("cast(X'ff41' as string)", "/0E="),
    ],
    ids=["date", "timestamp", "nested", "text"],
)
def test_values_that_python_has_not(
    spark: SparkSession, tmp_path: Path, function: Callable[..., float], value: str, kept: Any
) -> None:
    """P6, P17: a row that Python cannot hold is one letter, which names the column and keeps it."""
    made = guard(tmp_path)
    rows = spark.sql(f"select 1L id, 1.0D amount, {value} more")
    good = spark.sql(f"select 2L id, 2.0D amount, if(true, null, {value}) more")
    source = good.union(rows).union(good).coalesce(1)

    out = source.transform(made.flow(sg.map(function), name="odd")).collect()

    assert [row.value for row in out] == [4.0, 4.0]
    (letter,) = letters(tmp_path)
    assert letter.failure.stage == function.__name__
    assert letter.failure.cause is sg.Cause.POISON
    assert "'more'" in letter.failure.message
    assert json.loads(letter.record.columns or "") == {"id": 1, "amount": 1.0, "more": kept}
    assert made.ledger.total("odd").balanced


def test_what_json_has_not(spark: SparkSession, tmp_path: Path) -> None:
    """P17: a letter's columns are JSON that every reader takes, whatever the numbers are."""
    made = guard(tmp_path)
    frame = spark.sql("select -1.0D amount, 1L id, double('NaN') a, array(-float('inf')) b")

    frame.transform(made.flow(sg.map(of_struct), name="odd")).collect()

    (letter,) = letters(tmp_path)
    columns = letter.record.columns or ""
    assert json.loads(columns, parse_constant=pytest.fail)["a"] == "NaN"
    assert json.loads(columns)["b"] == ["-Infinity"]


def test_a_time_beyond_all_years(spark: SparkSession, tmp_path: Path) -> None:
    """P17: a producer that takes microseconds for milliseconds costs the letter its time, no more.

    Neither the record's letter nor that of a row that carries its origin.
    """
    made = guard(tmp_path, stages={"refuse": {"whole_batch": "dead_letter"}})
    rows = [*kafka_rows(['{"id": 1}', "{"])]
    late = spark.createDataFrame(rows, ROW).withColumn(
        "timestamp", f.expr("timestamp_micros(1700000000000000000)")
    )
    guarded = late.transform(made.flow(decode, name="late", carry=sg.ORIGIN))

    @sg.foreach_batch
    def refuse(batch: DataFrame, batch_id: int) -> None:
        raise ValueError("no")

    made.foreach_batch(refuse)(guarded, 0)

    found = {letter.failure.stage: letter.record for letter in letters(tmp_path)}
    assert (found["decode"].value, found["decode"].offset) == (b"{", 1)
    assert (found["refuse"].topic, found["refuse"].offset) == ("orders", 0)
    assert found["decode"].timestamp is found["refuse"].timestamp is None


def test_where_a_line_comes_from(spark: SparkSession, tmp_path: Path) -> None:
    """P6: a letter of a file's line names the file, in a stream and in a batch."""
    made = guard(tmp_path)
    flow = made.flow(sg.deserialize(sg.Json(OrderStruct)), name="lines")
    lines = stream(spark, tmp_path, ['{"id": 1, "amount": 2}', "{"])
    query = (
        lines.transform(flow)
        .writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(60)
    spark.read.text(str(tmp_path / "in")).transform(flow).collect()

    # One line of one file is one letter, whoever met it.
    (letter,) = letters(tmp_path)
    assert letter.record.coordinates == f"file:{tmp_path}/in/0-1.txt"
    assert letter.record.value == b"{"


def test_rows_of_a_join(spark: SparkSession, tmp_path: Path) -> None:
    """A row that is made of two files belongs to neither; its letter still holds it."""
    made = guard(tmp_path)
    (tmp_path / "a.csv").write_text("id,amount\n1,-1.5\n2,3.0\n")
    rows = spark.read.csv(str(tmp_path / "a.csv"), header=True, schema="id long, amount double")

    out = rows.join(rows.select("id"), "id").transform(made.flow(sg.map(of_struct), name="joined"))

    assert [row.value for row in out.collect()] == [6.0]
    (letter,) = letters(tmp_path)
    assert letter.record.file is None
    assert json.loads(letter.record.columns or "") == {"id": 1, "amount": -1.5}
