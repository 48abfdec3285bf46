"""Rows of other frames become what the first stage takes."""

import dataclasses
import datetime as dt
import enum
import pickle
import subprocess
import sys
from decimal import Decimal
from typing import Any, TypedDict

import msgspec
import pyarrow as pa
import pydantic
import pytest
from pyspark.sql import Row

from sparkguard.executor.rows import UnreadableError, read_one, row_reader


class Color(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Inner:
    x: int


@dataclasses.dataclass
class Data:
    id: int
    inner: Inner


class Order(msgspec.Struct, rename="camel"):
    id: int
    unit_price: Decimal
    at: dt.datetime
    inner: Inner
    rates: dict[str, float]
    inners: list[Inner]


class Model(pydantic.BaseModel):
    id: int
    unit_price: Decimal = pydantic.Field(alias="unitPrice")
    inner: Inner
    rates: dict[str, float]


class Dict(TypedDict):
    id: int
    inner: Inner


AT = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
BATCH = pa.RecordBatch.from_arrays(
    [
        pa.array([1, 2]),
        pa.array([Decimal("1.50"), Decimal("2.00")]),
        pa.array([AT, AT], pa.timestamp("us", tz="UTC")),
        pa.array([{"x": 1}, {"x": 2}]),
        pa.array([{"eur": 1.5}, {}], pa.map_(pa.string(), pa.float64())),
        pa.array([[{"x": 1}], []]),
    ],
    ["id", "unit_price", "at", "inner", "rates", "inners"],
)


def read(annotation: Any, batch: pa.RecordBatch = BATCH) -> list[Any]:
    """The rows of the batch as the annotated type, the reader pickled on the way."""
    reader, convert = pickle.loads(pickle.dumps(row_reader(annotation)))
    values = reader(batch)
    return values if convert is None else [convert(value) for value in values]


def test_row() -> None:
    """Row, Any and no annotation give a pyspark Row; structs inside are Rows, maps are dicts."""
    for annotation in (Row, Any, object, Row | None):
        first = read(annotation)[0]
        assert first == Row(
            id=1,
            unit_price=Decimal("1.50"),
            at=AT,
            inner=Row(x=1),
            rates={"eur": 1.5},
            inners=[Row(x=1)],
        )
        assert first.inner.x == 1


def test_dict() -> None:
    """A dict has the columns by name."""
    assert read(dict)[1]["inner"] == {"x": 2}
    assert read(dict)[0]["rates"] == {"eur": 1.5}
    assert read(dict[str, Any]) == read(dict)


def test_typed() -> None:
    """Structs, dataclasses, TypedDicts and models are made by attribute name or by alias."""
    order = Order(1, Decimal("1.50"), AT, Inner(1), {"eur": 1.5}, [Inner(1)])
    assert read(Order)[0] == order
    renamed = BATCH.rename_columns(["id", "unitPrice", "at", "inner", "rates", "inners"])
    assert read(Order, renamed)[0] == read(Order | None, renamed)[0] == order
    assert read(Data)[1] == Data(2, Inner(2))
    assert read(Dict)[0]["inner"] == Inner(1)
    model = Model(id=1, unitPrice=Decimal("1.50"), inner=Inner(1), rates={"eur": 1.5})
    assert read(Model)[0] == read(Model, renamed)[0] == model


def test_only_column() -> None:
    """A type without fields takes the frame's only column."""
    batch = pa.RecordBatch.from_pydict({"value": ["red", None]})
    assert read(str, batch) == ["red", None]
    reader, convert = row_reader(Color)
    assert convert is not None
    assert convert(reader(batch)[0]) is Color.RED
    maps = pa.RecordBatch.from_arrays(
        [pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64()))], ["m"]
    )
    assert read(list[int], maps) == [{"a": 1}]


@pytest.mark.parametrize("annotation", [Order, Data, Dict, Model])
def test_a_wrong_row_fails_alone(annotation: Any) -> None:
    """P6: reading a batch cannot fail; converting one row is that record's failure."""
    batch = pa.RecordBatch.from_pylist([{"id": None, "inner": {"x": 1}}])
    reader, convert = row_reader(annotation)
    (row,) = reader(batch)
    assert convert is not None
    with pytest.raises((msgspec.ValidationError, pydantic.ValidationError)):
        convert(row)


def test_loads_no_pydantic() -> None:
    """A worker that reads and encodes rows loads no pydantic of its own accord."""
    code = (
        "import sys, sparkguard.executor.rows, sparkguard.executor.encode, sparkguard.pickling,"
        "sparkguard.formats.json, sparkguard.stages.base, sparkguard.stages.types;"
        "sparkguard.executor.rows.row_reader(dict);"
        "bad = {'pydantic', 'pluggy', 'typer', 'pyspark', 'confluent_kafka'} & set(sys.modules);"
        "assert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_maps_whose_keys_are_structs() -> None:
    """Their keys are Rows, as Spark's own are."""
    point = pa.struct([("x", pa.int64())])
    column = pa.array([[({"x": 1}, "a")]], pa.map_(point, pa.string()))
    read, _ = row_reader(dict)
    assert read(pa.RecordBatch.from_arrays([column], ["m"])) == [{"m": {Row(x=1): "a"}}]


def test_a_key_that_no_dict_takes() -> None:
    """P17: it is the failure of its own row, and the others are read."""
    kind = pa.map_(pa.list_(pa.int64()), pa.string())
    batch = pa.RecordBatch.from_arrays([pa.array([[([1], "a")], []], kind)], ["m"])
    read, _ = row_reader(dict)
    with pytest.raises(UnreadableError, match="cannot hold the row: unhashable type"):
        read_one(read, batch, 0)
    assert read_one(read, batch, 1) == {"m": {}}
