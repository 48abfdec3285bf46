"""Encode: by column; a value that would lose something is found, alone."""

import dataclasses
import datetime as dt
import enum
import pickle
import uuid
from decimal import Decimal
from typing import Annotated, Any, NamedTuple, NotRequired, TypedDict
from zoneinfo import ZoneInfo

import msgspec
import pyarrow as pa
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import Row
from pyspark.sql.pandas.types import to_arrow_schema

from sparkguard.core.shape import WrongTypeError
from sparkguard.errors import SparkguardError
from sparkguard.executor.encode import Encoder
from sparkguard.executor.scalars import zone_of
from sparkguard.stages.types import shape_of, spark_type

BERLIN = ZoneInfo("Europe/Berlin")
NOON = dt.datetime(2020, 7, 1, 12)  # noqa: DTZ001


class Color(enum.Enum):
    RED = "red"


class Number(enum.IntEnum):
    ONE = 1


class Item(msgspec.Struct):
    sku: str
    count: int | None = None


class Order(msgspec.Struct):
    id: int
    items: list[Item]
    best: Item | None = None
    tags: dict[str, list[int]] = {}


class Address(TypedDict):
    street: str
    note: NotRequired[str]


class Point(NamedTuple):
    x: float


@dataclasses.dataclass
class Data:
    id: int


class Model(pydantic.BaseModel):
    id: int


def rows(annotation: Any, values: list[Any], zone: str = "UTC") -> list[dict[str, Any]]:
    """The rows that values become, all of which must fit."""
    encoder = Encoder(shape_of(annotation), zone)
    arrays, bad = encoder.encode(values)
    assert bad == []
    batch = pa.RecordBatch.from_arrays(arrays, schema=encoder.schema)
    batch.validate(full=True)
    found: list[dict[str, Any]] = batch.to_pylist(maps_as_pydicts="strict")
    return found


def column(annotation: Any, values: list[Any], zone: str = "UTC") -> list[Any]:
    """The only column of what values become."""
    return [row["value"] for row in rows(annotation, values, zone)]


def refusal(annotation: Any, value: Any) -> WrongTypeError:
    """The error of one value that must not fit, alone and between good neighbours."""
    encoder = Encoder(shape_of(annotation))
    arrays, bad = encoder.encode([value])
    assert [len(array) for array in arrays] == [0] * len(arrays)
    ((position, error),) = bad
    assert position == 0
    assert isinstance(error, WrongTypeError)
    return error


@pytest.mark.parametrize(
    ("annotation", "values"),
    [
        (int, [1, -(2**63), 2**63 - 1, 0]),
        (int | None, [1, None, 2]),
        (int | None, [None, None]),
        (float, [1.5, float("inf"), 0.0]),
        (float | None, [None, 2.5]),
        (str, ["", "ä", "\0"]),
        (str | None, [None, "x"]),
        (bytes, [b"", b"\xff"]),
        (bool, [True, False]),
        (bool | None, [None, False]),
        (dt.date, [dt.date(1, 1, 1), dt.date(9999, 12, 31)]),
        (dt.date | None, [None, dt.date(2020, 1, 1)]),
        (dt.timedelta, [dt.timedelta(microseconds=-1), dt.timedelta(days=9)]),
        (Decimal, [Decimal("1.000000000000000001"), Decimal(10) ** 19]),
        (list[int], [[], [1, 2], [3]]),
        (list[int | None] | None, [None, [None, 1], []]),
        (dict[str, int | None], [{}, {"a": 1, "b": None}]),
        (dict[str, dict[int, str]], [{"a": {1: "x"}}, {}]),
        (Annotated[int, "tinyint"], [-128, 127]),
        (Annotated[float, "float"], [0.5, float("inf")]),
        ("timestamp_ntz", [NOON]),
    ],
    ids=str,
)
def test_round_trip(annotation: Any, values: list[Any]) -> None:
    """What fits comes back as it was."""
    assert column(annotation, values) == values


@pytest.mark.parametrize(
    ("annotation", "value", "stored"),
    [
        (int, True, 1),
        (int, Number.ONE, 1),
        (float, 1, 1.0),
        (float, True, 1.0),
        (Decimal, 3, Decimal(3)),
        (bytes, bytearray(b"x"), b"x"),
        (bytes, memoryview(b"x"), b"x"),
        (list[int], (1, 2), [1, 2]),
        (set[int], {1}, [1]),
        (uuid.UUID, uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (Color, Color.RED, "red"),
        (Color | None, None, None),
        (
            dt.datetime,
            dt.datetime(2020, 1, 1, tzinfo=BERLIN),
            dt.datetime(2019, 12, 31, 23, tzinfo=dt.UTC),
        ),
    ],
    ids=str,
)
def test_conversions(annotation: Any, value: Any, stored: Any) -> None:
    """What loses nothing is converted."""
    assert column(annotation, [value]) == [stored]


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (int, 1.5),
        (int, 1.0),
        (int, "1"),
        (int, 2**63),
        (int, Decimal(1)),
        (int, None),
        (int, float("nan")),
        (Annotated[int, "int"], 2**31),
        (Annotated[int, "tinyint"], 128),
        (Annotated[int, "tinyint"] | None, 128),
        (float, "1"),
        (float, 2**60 + 1),
        (float, 10**400),
        (float, Decimal("1.5")),
        (Annotated[float, "float"], 1e300),
        (str, 1),
        (str, b"x"),
        (str, "\ud800"),
        (str, uuid.UUID(int=1)),
        (bytes, "x"),
        (bytes, 1),
        (bool, 1),
        (bool, "x"),
        (Decimal, 1.5),
        (Decimal, "1.5"),
        (Decimal, Decimal("NaN")),
        (Decimal, Decimal("1e-19")),
        (Annotated[Decimal, "decimal(5,2)"], Decimal("1.234")),
        (Annotated[Decimal, "decimal(5,2)"], Decimal(12345)),
        (dt.date, NOON),
        (dt.date, 5),
        (dt.date, "2020-01-01"),
        (dt.datetime, dt.date(2020, 1, 1)),
        (dt.datetime, 5),
        (dt.datetime, "2020-01-01"),
        (dt.datetime, dt.time(1)),
        ("timestamp_ntz", dt.datetime(2020, 1, 1, tzinfo=dt.UTC)),
        ("timestamp_ntz", dt.time(1)),
        (dt.timedelta, 5),
        (dt.timedelta, dt.timedelta.max),
        (list[str], "abc"),
        (list[int], b"ab"),
        (list[int], {1: 2}),
        (list[int], 1),
        (list[int], None),
        (list[int], [1, None]),
        (list[int], iter([1])),
        (dict[str, int], [("a", 1)]),
        (dict[str, int], {"a": None}),
        (dict[str, int], {1: 1}),
        (uuid.UUID, "00000000-0000-0000-0000-000000000001"),
        (Color, "red"),
        (Item, "x"),
        (Item, None),
        (Item, {"sku": "x"}),
        (Address, {}),
        (Address, "x"),
        ("a int not null", {}),
        ("a int not null", "x"),
        ("a int, b int", (1,)),
    ],
    ids=str,
)
def test_refuses(annotation: Any, value: Any) -> None:
    """Nothing is coerced that would lose something, and None is no value unless declared."""
    refusal(annotation, value)


@pytest.mark.parametrize(
    ("annotation", "good", "bad"),
    [
        (int, 1, 1.5),
        (float, 1.5, "x"),
        (str, "a", b"b"),
        (bytes, b"a", "b"),
        (bool, True, 1),
        (dt.date, dt.date(2020, 1, 1), NOON),
        (dt.timedelta, dt.timedelta(1), 5),
        (dt.datetime, NOON, 5),
        (list[int], [1], "1"),
        (int | None, None, "x"),
    ],
)
def test_misfits_between_good_neighbours(annotation: Any, good: Any, bad: Any) -> None:
    """P6: a wrong value is found whatever stands around it; the good rows stay in order."""
    for values in ([good, bad], [bad, good], [good, bad, good, good, bad], [bad] * 3):
        arrays, found = Encoder(shape_of(annotation)).encode(values)
        assert [at for at, _ in found] == [at for at, value in enumerate(values) if value is bad]
        assert len(arrays[0]) == sum(value is good for value in values)


@given(st.lists(st.one_of(st.integers(-5, 5), st.sampled_from(["x", 1.5, None])), max_size=40))
def test_halving_finds_exactly_the_misfits(values: list[Any]) -> None:
    """Every misfit is found once, in order, and no other value is lost."""
    arrays, bad = Encoder(shape_of(int)).encode(values)
    assert [at for at, _ in bad] == [
        at for at, value in enumerate(values) if type(value) is not int
    ]
    assert arrays[0].to_pylist() == [value for value in values if type(value) is int]


def test_structs() -> None:
    """Structs, dataclasses, models, named tuples and TypedDicts are taken apart by field."""
    order = Order(1, [Item("a"), Item("b", 2)], Item("c"), {"t": [1, 2]})
    assert rows(Order, [order, Order(2, [])]) == [
        {
            "id": 1,
            "items": [{"sku": "a", "count": None}, {"sku": "b", "count": 2}],
            "best": {"sku": "c", "count": None},
            "tags": {"t": [1, 2]},
        },
        {"id": 2, "items": [], "best": None, "tags": {}},
    ]
    assert rows(Data, [Data(1)]) == rows(Model, [Model(id=1)]) == [{"id": 1}]
    assert rows(Point, [Point(1.0)]) == [{"x": 1.0}]
    assert rows(Address, [{"street": "s"}, {"street": "t", "note": "n"}]) == [
        {"street": "s", "note": None},
        {"street": "t", "note": "n"},
    ]


def test_declared_by_ddl() -> None:
    """With DDL a value may be a dict, a Row, a tuple or an object, also mixed in one batch."""
    ddl = "id long, sub struct<x: int, y: int>"

    class Thing:
        id = 4
        sub = {"x": 4}  # noqa: RUF012

    values = [
        {"id": 1, "sub": {"x": 1, "y": 2}},
        Row(sub=Row(y=2, x=1), id=2),
        (3, (1, 2)),
        Thing(),
        {"sub": None, "other": 1},
    ]
    full = {"x": 1, "y": 2}
    assert rows(ddl, values) == [
        {"id": 1, "sub": full},
        {"id": 2, "sub": full},
        {"id": 3, "sub": full},
        {"id": 4, "sub": {"x": 4, "y": None}},
        {"id": None, "sub": None},
    ]


def test_optional_row() -> None:
    """None for a row is a row of nulls where the annotation allows it; its fields stay strict."""
    assert rows(Item | None, [Item("a"), None]) == [
        {"sku": "a", "count": None},
        {"sku": None, "count": None},
    ]
    _, bad = Encoder(shape_of(Item | None)).encode([None, Item(None)])  # type: ignore[arg-type]
    assert [at for at, _ in bad] == [1]


def test_nothing_to_encode() -> None:
    """No values are empty columns of the declared types."""
    encoder = Encoder(shape_of(Order))
    arrays, bad = encoder.encode([])
    assert [array.type for array in arrays] == encoder.schema.types
    assert bad == []


@pytest.mark.parametrize(
    ("annotation", "value", "sentence"),
    [
        (int, "x", "The value is declared int and got str 'x'."),
        (int, None, "The value is declared int and got None."),
        (Item, None, "The value is declared Item and got None."),
        (Item, Item(5), "Field 'sku' is declared str and got int 5."),  # type: ignore[arg-type]
        (
            Order,
            Order(1, [Item("a"), Item("b", 1.5)]),  # type: ignore[arg-type]
            "Field 'items[1].count' is declared int and got float 1.5.",
        ),
        (
            Order,
            Order(1, [], tags={"t": ["x"]}),  # type: ignore[list-item]
            "Field \"tags['t'][0]\" is declared int and got str 'x'.",
        ),
        (Order, Order(1, "ab"), "Field 'items' is declared list["),  # type: ignore[arg-type]
        ("id int not null", {"x": 1}, "The value is declared struct<id:int> and got dict {'x': 1}"),
    ],
)
def test_sentence(annotation: Any, value: Any, sentence: str) -> None:
    """The error names the field, the declared type, and the value with its type."""
    assert str(refusal(annotation, value)).startswith(sentence)


def test_sentence_says_why_where_the_type_is_right() -> None:
    """A number that is too large is told from a number of another type."""
    assert "too big" in str(refusal(int, 2**63))
    assert "precision" in str(refusal(Annotated[Decimal, "decimal(5,2)"], Decimal(12345)))


def test_sentence_is_bounded() -> None:
    """P18: at most 80 characters of the value are shown, and a repr that raises does no harm."""

    class Rude:
        def __repr__(self) -> str:
            raise RuntimeError

    assert len(str(refusal(int, "x" * 10_000_000))) < 200
    assert len(refusal(int, list(range(1000))).shown) == 80
    assert "repr raised RuntimeError" in str(refusal(int, Rude()))


def test_error_travels() -> None:
    """The error is one of sparkguard's, is a TypeError, and pickles with its facts."""
    error = refusal(int, "x")
    copied = pickle.loads(pickle.dumps(error))
    assert issubclass(type(copied), SparkguardError)
    assert issubclass(type(copied), TypeError)
    assert str(copied) == str(error)
    assert (copied.path, copied.declared, copied.given, copied.shown) == ("", "int", "str", "'x'")


@pytest.mark.parametrize("fold", [0, 1])
def test_naive_datetimes_are_in_the_sessions_zone(fold: int) -> None:
    """A naive datetime is read in the session's time zone, also beside aware ones."""
    ambiguous = dt.datetime(2020, 10, 25, 2, 30, fold=fold)  # noqa: DTZ001
    aware = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
    found = column(dt.datetime, [NOON, aware, ambiguous], "Europe/Berlin")
    assert found == [
        dt.datetime(2020, 7, 1, 10, tzinfo=dt.UTC),
        aware,
        dt.datetime(2020, 10, 25, fold, 30, tzinfo=dt.UTC),
    ]
    assert column(dt.datetime | None, [None, NOON], "Europe/Berlin")[1] == found[0]


@pytest.mark.parametrize(
    ("name", "hours"),
    [
        ("UTC", 0),
        ("Z", 0),
        ("+02:00", 2),
        ("-0300", -3),
        ("GMT+1", 1),
        ("UTC+05:30", 5.5),
        ("Asia/Tokyo", 9),
    ],
)
def test_zones(name: str, hours: float) -> None:
    """Every way in which Spark writes a zone is understood."""
    assert zone_of(name).utcoffset(NOON) == dt.timedelta(hours=hours)


class Everything(msgspec.Struct):
    a: int
    b: float | None
    c: Decimal
    d: list[Item]
    e: dict[str, Item | None]
    f: dt.datetime
    g: dt.timedelta
    h: Item | None
    i: Annotated[dt.datetime, "timestamp_ntz"]
    j: list[list[int | None]]


def test_schema_is_sparks() -> None:
    """The Arrow types are those that Spark makes of the same schema, nullability included."""
    shape = shape_of(Everything)
    expected = to_arrow_schema(spark_type(shape), timezone="UTC")
    found = Encoder(shape).schema
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours.name, ours.type, ours.nullable) == (theirs.name, theirs.type, theirs.nullable)
