"""Types: what an annotation means to Spark, and what Spark has not."""

import dataclasses
import datetime as dt
import enum
import typing
import uuid
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import (
    Annotated,
    Any,
    Generic,
    Literal,
    NamedTuple,
    NewType,
    NotRequired,
    Protocol,
    TypedDict,
    TypeVar,
)

import msgspec
import pydantic
import pytest
from pyspark.sql.types import DecimalType, LongType, StringType, StructField, StructType

from sparkguard.core.shape import Kind, Shape, Take, Unwrap
from sparkguard.errors import StageError
from sparkguard.stages.types import compatible, shape_of, spark_type

T = TypeVar("T")
UserId = NewType("UserId", int)


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1


class Mixed(enum.Enum):
    A = 1
    B = "b"


class Item(msgspec.Struct):
    sku: str
    count: int | None = None


@dataclasses.dataclass
class Order:
    id: UserId
    items: list[Item]
    color: Color
    at: "dt.datetime"
    kind: typing.ClassVar[str] = "order"


class Sub(pydantic.BaseModel):
    x: int


class Line(pydantic.BaseModel):
    item: Sub | None = None
    price: Annotated[Decimal, "decimal(10,2)"]
    rates: dict[str, float | None]


class Address(TypedDict):
    street: str
    note: NotRequired[str]


class Point(NamedTuple):
    x: float
    y: float


class Box(msgspec.Struct, Generic[T]):
    item: T
    more: list[T]


class IntBox(Box[int]):
    name: str


class Node(msgspec.Struct):
    next: "Node | None" = None


class Empty(msgspec.Struct):
    pass


class Plain:
    id: int


class HasId(Protocol):
    id: int


class Deep(msgspec.Struct):
    orders: list[dict[str, Box[Any]]]


class Twins(msgspec.Struct):
    id: int
    ID: int


@pytest.mark.parametrize(
    ("annotation", "ddl"),
    [
        (bool, "boolean"),
        (int, "bigint"),
        (float, "double"),
        (str, "string"),
        (bytes, "binary"),
        (Decimal, "decimal(38,18)"),
        (dt.date, "date"),
        (dt.datetime, "timestamp"),
        (dt.timedelta, "interval day to second"),
        (uuid.UUID, "string"),
        (UserId, "bigint"),
        (Color, "string"),
        (Level, "bigint"),
        (Literal["a", "b"], "string"),
        (Literal[1] | None, "bigint"),
        (int | None, "bigint"),
        (typing.Optional[str], "string"),  # noqa: UP045
        (list[int], "array<bigint>"),
        (set[str], "array<string>"),
        (frozenset[str], "array<string>"),
        (tuple[int, ...], "array<bigint>"),
        (tuple[float, float], "array<double>"),
        (Sequence[Item], "array<struct<sku:string,count:bigint>>"),
        (dict[str, list[int]], "map<string,array<bigint>>"),
        (Mapping[int, bool], "map<bigint,boolean>"),
        (Annotated[int, "int"], "int"),
        (Annotated[int, "a docstring"], "bigint"),
        (Annotated[str, "int"], "string"),
        (Annotated[dt.datetime, "timestamp_ntz"], "timestamp_ntz"),
        (Item, "struct<sku:string,count:bigint>"),
        (
            Order,
            "struct<id:bigint,items:array<struct<sku:string,count:bigint>>,color:string,at:timestamp>",
        ),
        (
            Line,
            "struct<item:struct<x:bigint>,price:decimal(10,2),rates:map<string,double>>",
        ),
        (Address, "struct<street:string,note:string>"),
        (Point, "struct<x:double,y:double>"),
        (Box[str], "struct<item:string,more:array<string>>"),
        (IntBox, "struct<item:bigint,more:array<bigint>,name:string>"),
        ("id long, at timestamp", "struct<id:bigint,at:timestamp>"),
        ("array<long>", "array<bigint>"),
        (LongType(), "bigint"),
        (LongType, "bigint"),
        (DecimalType(5, 1), "decimal(5,1)"),
        (StructType([StructField("a", StringType())]), "struct<a:string>"),
    ],
    ids=str,
)
def test_means(annotation: Any, ddl: str) -> None:
    """Each annotation is one type of Spark."""
    assert shape_of(annotation).ddl == ddl


def test_nullable() -> None:
    """None is a value only where the annotation says so; DDL columns are nullable as in Spark."""
    shape = shape_of(Item)
    assert [field.shape.nullable for field in shape.fields] == [False, True]
    assert shape_of(int | None).nullable
    assert shape_of(Literal["a"] | None).nullable
    assert [f.shape.nullable for f in shape_of(Address).fields] == [False, True]
    assert [f.shape.nullable for f in shape_of("a int not null, b int").fields] == [False, True]


def test_take_and_unwrap() -> None:
    """The shape says how a value is taken apart."""
    assert shape_of(Order).take is Take.ATTRIBUTE
    assert shape_of(Address).take is Take.ITEM
    assert shape_of("a int").take is Take.ANY
    assert shape_of(Color).unwrap is Unwrap.ENUM
    assert shape_of(uuid.UUID).unwrap is Unwrap.UUID
    assert shape_of(Color | None).unwrap is Unwrap.ENUM


@pytest.mark.parametrize(
    ("annotation", "pieces"),
    [
        (Any, ["Any", "no type that Spark has"]),
        (object, ["object"]),
        (Callable[[int], int], ["no type that Spark has"]),
        (int | str, ["choice of several types"]),
        (Mixed, ["Mixed", "several types"]),
        (Literal[1, "a"], ["several types"]),
        (list, ["says not of what"]),
        (dict, ["says not of what"]),
        (tuple[int, str], ["use a NamedTuple"]),
        (dict[str | None, int], ["keys"]),
        (Node, ["'next'", "contains itself"]),
        (Empty, ["has no fields"]),
        (Plain, ["Plain", "no type that Spark has"]),
        (complex, ["complex"]),
        (dt.time, ["time"]),
        (None, ["no type that Spark has"]),
        (Deep, ["field 'orders[].value.item'", "Any"]),
        (Box, ["type variable T"]),
        (Twins, ["case only"]),
        ("id lonk", ["'lonk'"]),
        ("", ["no schema"]),
        (StructType(), ["has no fields"]),
    ],
    ids=str,
)
def test_refuses(annotation: Any, pieces: list[str]) -> None:
    """A type that Spark has not is refused with a sentence that names the path to it."""
    with pytest.raises(StageError) as caught:
        shape_of(annotation, where="stage 'price'")
    for piece in ["stage 'price'", *pieces]:
        assert piece in str(caught.value)


def test_spark_type_of_struct() -> None:
    """Columns, their order and their nullability are those of the annotation."""
    found = spark_type(shape_of(Order))
    assert found.simpleString() == shape_of(Order).ddl
    assert [field.nullable for field in found] == [False, False, False, False]
    items = found["items"].dataType
    assert not items.containsNull  # type: ignore[attr-defined]
    assert shape_of(found).ddl == shape_of(Order).ddl


def test_spark_type_of_scalar() -> None:
    """A type that is no struct is one column, ``value``."""
    found = spark_type(shape_of(int | None))
    assert found == StructType([StructField("value", LongType(), nullable=True)])
    assert spark_type(shape_of(list[int])).names == ["value"]


def test_spark_type_of_optional_struct() -> None:
    """None for a whole row is a row of nulls, so every column is nullable."""
    assert all(field.nullable for field in spark_type(shape_of(Item | None)))
    assert not shape_of(Item | None).fields[0].shape.nullable


@pytest.mark.parametrize("kind", list(Kind))
def test_every_kind_has_a_spark_type(kind: Kind) -> None:
    """No kind is without its type of Spark."""
    inner = Shape(kind=Kind.STRING)
    shape = Shape(kind=kind, element=inner, key=inner, fields=shape_of("a int").fields)
    assert spark_type(shape)
    assert shape.ddl


@pytest.mark.parametrize(
    ("output", "input"),
    [
        (Order, Order),
        (Order, Any),
        (Any, Order),
        (Order, object),
        (IntBox, Box),
        (Box, IntBox),
        (Box[int], Box),
        (int, float),
        (bool, int),
        (Order | None, Order),
        (Order, Order | None),
        (int | str, str),
        (UserId, int),
        (Literal["a"], str),
        (Color, Color),
        (list[int], list[int]),
        (list[int], Sequence[int]),
        (list[Any], list[int]),
        (dict[str, int], Mapping[str, int]),
        (Address, dict),
        (dict[str, Any], Address),
        ("id long", dict),
        ("id long", dict[str, Any]),
        ("long", int),
        (Order, HasId),
        (bytes, bytes | None),
        (tuple[int, ...], tuple[int, ...]),
        (T, int),
        (Annotated[int, "int"], int),
    ],
    ids=str,
)
def test_compatible(output: Any, input: Any) -> None:
    """What may fit is not refused."""
    assert compatible(output, input)


@pytest.mark.parametrize(
    ("output", "input"),
    [
        (Order, Item),
        (Order, dict),
        (Address, Order),
        ("id long", Order),
        (str, int),
        (float, int),
        (bytes, str),
        (list[Order], Order),
        (list[int], list[str]),
        (dict[str, int], dict[str, str]),
        (Order | None, Item | None),
        (Literal["a"], int),
        (UserId, str),
    ],
    ids=str,
)
def test_incompatible(output: Any, input: Any) -> None:
    """What surely does not fit is found before any record is read."""
    assert not compatible(output, input)
