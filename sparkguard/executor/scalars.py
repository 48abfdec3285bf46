"""Scalars: values that Arrow takes as they are, and refuses when they would lose something."""

from __future__ import annotations

import datetime as dt
import math
import re
import uuid
from array import array
from collections.abc import Callable
from functools import partial
from typing import Any, Final
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.compute as pc

from sparkguard.core.shape import Kind, Shape, Unwrap, inside

Make = Callable[[list[Any]], pa.Array]

_ARROW: Final = {
    Kind.BOOLEAN: pa.bool_(),
    Kind.BYTE: pa.int8(),
    Kind.SHORT: pa.int16(),
    Kind.INT: pa.int32(),
    Kind.LONG: pa.int64(),
    Kind.FLOAT: pa.float32(),
    Kind.DOUBLE: pa.float64(),
    Kind.STRING: pa.string(),
    Kind.BINARY: pa.binary(),
    Kind.DATE: pa.date32(),
    Kind.TIMESTAMP: pa.timestamp("us", tz="UTC"),
    Kind.TIMESTAMP_NTZ: pa.timestamp("us"),
    Kind.DURATION: pa.duration("us"),
}
_CODES: Final = {Kind.BYTE: "b", Kind.SHORT: "h", Kind.INT: "i", Kind.LONG: "q"}


def arrow_type(shape: Shape) -> pa.DataType:
    """The Arrow type that Spark expects of a column of this shape."""
    match shape.kind:
        case Kind.DECIMAL:
            return pa.decimal128(shape.precision, shape.scale)
        case Kind.ARRAY:
            return pa.list_(_field("element", inside(shape.element)))
        case Kind.MAP:
            value = _field("value", inside(shape.element))
            return pa.map_(arrow_type(inside(shape.key)), value)
        case Kind.STRUCT:
            return pa.struct([_field(field.name, field.shape) for field in shape.fields])
        case kind:
            return _ARROW[kind]


def _field(name: str, shape: Shape) -> pa.Field:
    return pa.field(name, arrow_type(shape), nullable=shape.nullable)


def zone_of(name: str) -> dt.tzinfo:
    """The time zone that Spark calls `name`: a region, ``UTC``, ``Z`` or an offset."""
    offset = re.fullmatch(r"(?:UTC|GMT|UT)?([+-])(\d{1,2})(?::?(\d{2}))?(?::?(\d{2}))?", name)
    if offset is None:
        return dt.UTC if name in {"UTC", "Z", "GMT", "UT"} else ZoneInfo(name)
    sign, hours, minutes, seconds = offset.groups(default="0")
    ahead = dt.timedelta(hours=int(hours), minutes=int(minutes), seconds=int(seconds))
    return dt.timezone(-ahead if sign == "-" else ahead)


class NoneError(TypeError):
    """None where the declared type has none."""


def not_null(made: pa.Array, shape: Shape) -> pa.Array:
    """The array, unless it has nulls that its shape has not."""
    if made.null_count and not shape.nullable:
        raise NoneError
    return made


def require(fits: bool) -> None:  # noqa: FBT001
    """Raise a TypeError without words: the one who catches it has them."""
    if not fits:
        raise TypeError


def scalar(shape: Shape, zone: dt.tzinfo) -> Make:
    """What makes an array of scalars of a shape; it raises where one does not fit."""
    declared = arrow_type(shape)
    makers: dict[Kind, Make] = {
        **{kind: _integers(declared, code) for kind, code in _CODES.items()},
        **dict.fromkeys((Kind.FLOAT, Kind.DOUBLE), partial(_floats, declared)),
        Kind.STRING: _inferred(declared, str),
        Kind.BOOLEAN: _inferred(declared, bool),
        Kind.BINARY: _typed(declared, frozenset({bytes, bytearray, memoryview})),
        Kind.DATE: _typed(declared, frozenset({dt.date})),
        Kind.DURATION: _typed(declared, frozenset({dt.timedelta})),
        Kind.TIMESTAMP: lambda values: pa.array(_aware(values, zone), declared),
        Kind.TIMESTAMP_NTZ: lambda values: pa.array(_naive(values), declared),
    }
    # Of decimals Arrow itself refuses floats, too many digits and NaN.
    return makers.get(shape.kind, lambda values: pa.array(values, declared))


def unwrapping(shape: Shape) -> Callable[[list[Any]], list[Any]] | None:
    """What makes the values that are stored of those that a stage gives."""
    match shape.unwrap:
        case Unwrap.NOTHING:
            return None
        case Unwrap.ENUM:
            return lambda values: [None if v is None else v.value for v in values]
        case Unwrap.UUID:
            return lambda values: [None if v is None else _uuid_text(v) for v in values]


def _uuid_text(value: Any) -> str:
    require(isinstance(value, uuid.UUID))
    return str(value)


def _integers(declared: pa.DataType, code: str) -> Make:
    def make(values: list[Any]) -> pa.Array:
        try:
            # Faster than pyarrow, and stricter: it asks for __index__, which a float has not.
            packed = array(code, values)
        except TypeError:
            checked = [None if v is None else v.__index__() for v in values]
            return pa.array(checked, declared)
        return pa.Array.from_buffers(declared, len(packed), [None, pa.py_buffer(packed)])

    return make


def _floats(declared: pa.DataType, values: list[Any]) -> pa.Array:
    double = pa.float64()
    try:
        made = pa.array(values)  # inferring costs nothing, and tells what the values were
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        made = None
    if made is None or made.type != double:
        made = pa.array([None if v is None else _as_float(v) for v in values], double)
    if declared == double:
        return made
    narrow = made.cast(declared)
    if _infinite(narrow) > _infinite(made):
        msg = "out of range"
        raise OverflowError(msg)
    return narrow


def _infinite(values: pa.Array) -> int:
    return pc.sum(pc.is_inf(values)).as_py() or 0


def _as_float(value: Any) -> float:
    if isinstance(value, float):
        return float(value)
    if type(value).__module__ == "numpy" and hasattr(value, "__float__"):
        return float(value)
    require(isinstance(value, int))
    made = float(value)
    if not math.isfinite(made) or int(made) != value:
        msg = "not exact as a double"
        raise OverflowError(msg)
    return made


def _inferred(declared: pa.DataType, cls: type) -> Make:
    def make(values: list[Any]) -> pa.Array:
        made = pa.array(values)  # of bytes it makes no strings then, as it does with a type
        if made.type == declared:
            return made
        for given in set(map(type, values)):
            require(issubclass(given, cls | None))
        return pa.array(values, declared)

    return make


def _typed(declared: pa.DataType, allowed: frozenset[type]) -> Make:
    known = allowed | {type(None)}

    def make(values: list[Any]) -> pa.Array:
        for given in set(map(type, values)) - known:
            # A datetime is a date, and would lose its time.
            require(issubclass(given, tuple(allowed)) and not issubclass(given, dt.datetime))
        return pa.array(values, declared)

    return make


def _aware(values: list[Any], zone: dt.tzinfo) -> list[Any]:
    zones = {value.tzinfo for value in values if value is not None}
    if None not in zones:
        return values
    return [v.replace(tzinfo=zone) if v is not None and v.tzinfo is None else v for v in values]


def _naive(values: list[Any]) -> list[Any]:
    require({value.tzinfo for value in values if value is not None} <= {None})
    for given in set(map(type, values)):
        require(issubclass(given, dt.datetime | None))
    return values
