"""Json: what Spark's from_json turns into a quiet NULL is told apart."""

import dataclasses
import datetime as dt
import pickle
from decimal import Decimal
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from sparkguard.errors import StageError
from sparkguard.formats.base import Format, explained
from sparkguard.formats.json import Json


class Pair(msgspec.Struct):
    a: int
    b: str


@dataclasses.dataclass
class PairClass:
    a: int
    b: str


class PairDict(TypedDict):
    a: int
    b: NotRequired[str]


class PairModel(pydantic.BaseModel):
    a: int
    b: str

    @pydantic.field_validator("a")
    @classmethod
    def _positive(cls, value: int) -> int:
        if value < 0:
            raise ValueError("a is negative")
        return value


class Mixed(msgspec.Struct):
    pair: PairModel


class Strange:
    pass


def read(format: Json[Any], value: bytes) -> Any:
    """What the format makes of one value."""
    return format.decoder()(value)


def reason(format: Json[Any], value: bytes) -> str:
    """Why the format refuses a value, in the words that reach a letter."""
    with pytest.raises(Exception) as caught:  # noqa: PT011  the reason is what is looked at
        read(format, value)
    return str(explained(format, value, caught.value))


DDL = "a int not null, b string not null"

# id, document, what a struct, and what DDL makes of it: a value, or a piece of the reason.
PJ: list[tuple[str, bytes, Any, Any]] = [
    ("PJ-01", b'{"a":1,"b":"x"}', Pair(1, "x"), {"a": 1, "b": "x"}),
    ("PJ-02", b'{"a":"zz","b":"y"}', "Expected `int`, got `str` - at `$.a`", None),
    ("PJ-03", b"{bad", "JSON is malformed", None),
    ("PJ-04", b"", "The value is empty", None),
    ("PJ-04 blanks", b" \n", "The value is empty", None),
    ("PJ-06", b'[{"a":1}]', "Expected `object`, got `array`", None),
    ("PJ-07 missing", b'{"a":1}', "missing required field `b`", None),
    ("PJ-07 unknown", b'{"a":1,"b":"x","c":2}', Pair(1, "x"), {"a": 1, "b": "x"}),
    ("PJ-08", b'{"a":1,"b":"x"}{"a":2,"b":"y"}', "trailing characters (byte 16)", None),
    ("PJ-09", b'"str"', "Expected `object`, got `str`", None),
    ("PJ-10", b"null", "Expected `object`, got `null`", None),
    ("PJ-11", b'{"a":99999999999,"b":"x"}', Pair(99999999999, "x"), "Expected `int` <= 2147483647"),
    ("PJ-12", b'{"a":1.5,"b":"x"}', "Expected `int`, got `float` - at `$.a`", None),
    ("PJ-14", b'{"a":1,"b":"\xff"}', "can't decode byte 0xff", None),
    ("truncated", b'{"a":1,"b":"x"', "Input data was truncated", None),
    ("byte order mark", b'\xef\xbb\xbf{"a":1,"b":"x"}', "JSON is malformed", None),
    ("NaN", b'{"a":NaN,"b":"x"}', "JSON is malformed", None),
    ("bool for int", b'{"a":true,"b":"x"}', "Expected `int`, got `bool`", None),
    ("lone surrogate", b'{"a":1,"b":"\\ud800"}', "", None),
]


@pytest.mark.parametrize(
    ("document", "struct", "ddl"), [case[1:] for case in PJ], ids=[case[0] for case in PJ]
)
def test_told_apart(document: bytes, struct: Any, ddl: Any) -> None:
    """Every document that from_json makes NULL of is a value or a reason of its own."""
    for format, expected in ((Json(Pair), struct), (Json(DDL), struct if ddl is None else ddl)):
        if isinstance(expected, str):
            assert expected in reason(format, document)
        else:
            assert read(format, document) == expected


@pytest.mark.parametrize(
    "format", [Json(PairClass), Json(PairDict), Json(PairModel), Json(DDL)], ids=str
)
@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"{bad",
        b"[]",
        b"null",
        b'"s"',
        b'{"b":"x"}',
        b'{"a":1,"b":"x"}{}',
        b'{"a":1.5,"b":"x"}',
    ],
)
def test_every_type_refuses(format: Json[Any], document: bytes) -> None:
    """No way of declaring the type makes a value of a document that is none."""
    assert reason(format, document)


def test_every_type_reads() -> None:
    """A document becomes an object of the declared type."""
    document = b'{"a":1,"b":"x"}'
    assert read(Json(Pair), document) == Pair(1, "x")
    assert read(Json(PairClass), document) == PairClass(1, "x")
    assert read(Json(PairDict), document) == {"a": 1, "b": "x"}
    assert read(Json(PairDict), b'{"a":1}') == {"a": 1}
    assert read(Json(PairModel), document) == PairModel(a=1, b="x")
    assert read(Json(list[Pair]), b"[" + document + b"]") == [Pair(1, "x")]
    assert read(Json(), b'{"a":[1,null]}') == {"a": [1, None]}


def test_plain_decoder_is_msgspecs() -> None:
    """The good path has no Python frame a record: the decoder is a function of C."""
    assert type(Json(Pair).decoder()).__name__ == "builtin_function_or_method"
    assert type(Json(PairModel).decoder()).__name__ == "builtin_function_or_method"


def test_pydantic_validates() -> None:
    """A pydantic model's own rules hold, also inside a struct."""
    assert "a is negative" in reason(Json(PairModel), b'{"a":-1,"b":"x"}')
    assert "a is negative" in reason(Json(Mixed), b'{"pair":{"a":-1,"b":"x"}}')
    assert read(Json(Mixed), b'{"pair":{"a":1,"b":"x"}}').pair == PairModel(a=1, b="x")


def test_struct_may_forbid_unknown_fields() -> None:
    """Unknown fields are ignored unless the type forbids them."""
    closed = msgspec.defstruct("Closed", [("a", int)], forbid_unknown_fields=True)
    assert "unknown field `c`" in reason(Json(closed), b'{"a":1,"c":2}')


WIDE = (
    "id long not null, at timestamp, local timestamp_ntz, day date, price decimal(5,2), "
    "raw binary, small tinyint, `odd name` string, "
    "items array<struct<sku: string not null, n: int>>, "
    "rates map<string, double>, wait interval day to second, note string"
)


def test_ddl_converts() -> None:
    """Documents by DDL are dicts of the declared types; an absent nullable column is None."""
    row = read(
        Json(WIDE),
        b'{"id":1,"at":"2020-01-01T00:00:00Z","local":"2020-01-01T00:00:00","day":"2020-01-02",'
        b'"price":9.90,"raw":"aGk=","small":-128,"odd name":"x","items":[{"sku":"s"}],'
        b'"rates":{"eur":1},"wait":"P1D"}',
    )
    assert row == {
        "id": 1,
        "at": dt.datetime(2020, 1, 1, tzinfo=dt.UTC),
        "local": dt.datetime(2020, 1, 1),  # noqa: DTZ001
        "day": dt.date(2020, 1, 2),
        "price": Decimal("9.90"),
        "raw": b"hi",
        "small": -128,
        "odd name": "x",
        "items": [{"sku": "s", "n": None}],
        "rates": {"eur": 1.0},
        "wait": dt.timedelta(days=1),
        "note": None,
    }


@pytest.mark.parametrize(
    ("field", "piece"),
    [
        (b'"price":1.234', "decimal(5,2)"),
        (b'"price":12345', "decimal(5,2)"),
        (b'"price":"NaN"', "decimal(5,2)"),
        (b'"small":128', "<= 127"),
        (b'"id":9223372036854775808', "<= 9223372036854775807"),
        (b'"at":"yesterday"', "Invalid RFC3339"),
        (b'"local":"2020-01-01T00:00:00Z"', "timezone"),
        (b'"raw":"%"', "base64"),
        (b'"items":[{"n":1}]', "missing required field `sku`"),
        (b'"rates":{"eur":"x"}', "$.rates[...]"),
        (b'"rates":{"eur":1e999}', "out of range"),
    ],
)
def test_ddl_refuses(field: bytes, piece: str) -> None:
    """A value that its column cannot hold fails; nothing is rounded, wrapped or cut."""
    keep = b'"id":1,' if b'"id"' not in field else b""
    assert piece in reason(Json(WIDE), b"{" + keep + field + b"}")


@given(
    st.decimals(allow_nan=False, allow_infinity=False, places=3, min_value=-2000, max_value=2000)
)
def test_ddl_decimals_exact(number: Decimal) -> None:
    """A decimal is read as it stands, or refused."""
    fits = number == number.quantize(Decimal("0.01")) and abs(number) < 1000
    format = Json("price decimal(5,2)")
    document = b'{"price":%s}' % str(number).encode()
    if fits:
        assert read(format, document) == {"price": number}
    else:
        assert "decimal(5,2)" in reason(format, document)


def test_struct_type() -> None:
    """A StructType says the same as its DDL."""
    schema = StructType([StructField("a", IntegerType(), False), StructField("b", StringType())])
    assert read(Json(schema), b'{"a":1}') == {"a": 1, "b": None}
    assert read(Json("array<struct<a:int>>"), b'[{"a":1}]') == [{"a": 1}]


@pytest.mark.parametrize("type", [Pair, PairClass, PairModel, DDL, None], ids=str)
def test_strict(type: Any) -> None:
    """Strict also refuses duplicate keys, and invalid UTF-8 in fields the type does not name."""
    twice = b'{"a":1,"b":"x","z":{"k":1,"k":2}}'
    invalid = b'{"a":1,"b":"x","z":"\xff"}'
    strict, lenient = Json(type, strict=True), Json(type)
    assert "'k' more than once" in reason(strict, twice)
    assert "0xff" in reason(strict, invalid)
    assert "The value is empty" in reason(strict, b"")
    assert read(strict, b'{"a":1,"b":"x"}') == read(lenient, b'{"a":1,"b":"x"}')
    assert read(lenient, twice)


def test_check_names_what_cannot_be_read() -> None:
    """A type that no document can be read as is refused when the flow is built."""
    for wrong in (Strange, list[Strange], msgspec.defstruct("S", [("s", Strange)])):
        with pytest.raises(StageError, match="Json cannot read Strange"):
            Json(wrong).check()
    with pytest.raises(StageError, match="no schema"):
        Json("id lonk").check()
    for right in (Pair, PairClass, PairDict, PairModel, Mixed, DDL, None):
        Json(right).check()


def test_is_a_value() -> None:
    """A format is a frozen value that travels."""
    format = Json(Pair, strict=True)
    assert isinstance(format, Format)
    assert pickle.loads(pickle.dumps(format)) == format != Json(Pair)
    assert format.type is Pair
    assert Json().type is Any
    with pytest.raises(dataclasses.FrozenInstanceError):
        format.strict = False  # type: ignore[misc]


def test_explaining_never_raises() -> None:
    """Where a format cannot explain, the first error stands."""

    class Broken:
        def explain(self, value: Any, error: BaseException) -> BaseException:
            raise RuntimeError

    error = ValueError("first")
    assert explained(Broken(), b"", error) is error  # type: ignore[arg-type]
    assert explained(None, b"", error) is error


def test_page_tells_of_every_case() -> None:
    """The docs page has a row for each of the cases that from_json swallows."""
    page = (Path(__file__).parents[3] / "docs" / "json.md").read_text()
    missing = [f"PJ-{number:02}" for number in range(1, 15) if f"| PJ-{number:02} |" not in page]
    assert missing == []
