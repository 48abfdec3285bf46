"""JSON values, one document each.

What Spark's `from_json` turns into a quiet NULL is told apart here: see ``docs/json.md``.
"""

from __future__ import annotations

import builtins
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Final,
    Generic,
    NotRequired,
    TypedDict,
    TypeVar,
    cast,
    overload,
)

import msgspec
from msgspec import Meta

from sparkguard.core.ddl import parse_ddl, parse_json_type
from sparkguard.core.shape import Field, Kind, Shape, inside
from sparkguard.errors import StageError

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

T = TypeVar("T")
Finish = Callable[[Any, str], Any]


@dataclass(frozen=True, slots=True, init=False)
class Json(Generic[T]):
    """Reads one JSON document as an object of a type.

    Attributes:
        type: a msgspec struct, dataclass, TypedDict or anything that msgspec reads; a
            pydantic model, which validates; a DDL string or pyspark type, which gives
            dicts; None gives plain Python objects.
        strict: also refuse duplicate keys, and bytes that are no UTF-8 in fields that the
            type does not name. Each document is then read twice: about ten times the cost.
    """

    type: Any
    strict: bool

    @overload
    def __init__(self: Json[T], type: builtins.type[T], *, strict: bool = False) -> None: ...
    @overload
    def __init__(self: Json[Any], type: None = None, *, strict: bool = False) -> None: ...
    @overload
    def __init__(
        self: Json[dict[str, Any]], type: str | DataType, *, strict: bool = False
    ) -> None: ...
    def __init__(self, type: Any = None, *, strict: bool = False) -> None:
        object.__setattr__(self, "type", Any if type is None else type)
        object.__setattr__(self, "strict", strict)

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(Json, strict=self.strict), (self.type,)

    def decoder(self) -> Callable[[bytes], T]:
        """The function that reads one value: msgspec's or pydantic's own, with no frame around."""
        declared = _declared(self.type)
        if declared is not None:
            decode = _dicts(declared)
        elif _is_pydantic(self.type):
            decode = self.type.__pydantic_validator__.validate_json
        else:
            decode = msgspec.json.Decoder(self.type, dec_hook=_validated).decode
        return partial(_read_strictly, decode) if self.strict else decode

    def encoder(self) -> Callable[[Any], bytes]:
        """The function that writes one value, of whatever type; NaN and infinity are failures.

        Decimals are numbers, times ISO 8601, bytes base64, as in Spark's ``to_json``; unlike
        there, nulls are written.
        """
        return _write

    def rows(self, names: Sequence[str]) -> Callable[[Sequence[list[Any]]], list[bytes]] | None:
        """The function that writes many rows, given by column; a third of one by one.

        None where a name has quotes or control characters, which msgspec would not escape.
        """
        fields = [f"f{number}" for number in range(len(names))]
        renamed = dict(zip(fields, names, strict=True))
        try:
            row = msgspec.defstruct("Row", fields, rename=renamed, gc=False)
        except ValueError:
            return None
        return partial(_write_rows, row)

    def check(self) -> None:
        """Refuse a type that no document could be read as.

        Raises:
            StageError: names the type.
        """
        try:
            self.decoder()
            known = _declared(self.type) is not None or _is_pydantic(self.type)
            strange = None if known else _unreadable(msgspec.inspect.type_info(self.type), set())
        except StageError:
            raise
        except Exception as error:
            msg = f"Json cannot read {self.type!r}: {error}."
            raise StageError(msg) from error
        if strange is not None:
            msg = (
                f"Json cannot read {strange.__qualname__}: it is no msgspec struct, dataclass, "
                "TypedDict or pydantic model."
            )
            raise StageError(msg)

    def explain(self, value: bytes, error: BaseException) -> BaseException:
        """Say that an empty value is empty, where the decoder says that it was truncated."""
        if not bytes(value).strip(b" \t\r\n"):
            return msgspec.DecodeError("The value is empty")
        return error


def _is_pydantic(type: Any) -> bool:
    return isinstance(type, builtins.type) and hasattr(type, "__pydantic_validator__")


def _validated(type: Any, plain: Any) -> Any:
    """A pydantic model inside a type that msgspec reads."""
    if _is_pydantic(type):
        return type.__pydantic_validator__.validate_python(plain)
    msg = f"{type!r} is no type that JSON can be read as"
    # What msgspec asks of a hook that does not know a type.
    raise NotImplementedError(msg)


def _unreadable(info: Any, seen: set[int]) -> builtins.type | None:
    """A class in a described type that msgspec knows nothing of."""
    if id(info) in seen:
        return None
    seen.add(id(info))
    if isinstance(info, msgspec.inspect.CustomType):
        return None if _is_pydantic(info.cls) else info.cls
    for name in getattr(info, "__struct_fields__", ()):
        part = getattr(info, name)
        for one in part if isinstance(part, tuple) else (part,):
            found = _unreadable(one, seen) if isinstance(one, msgspec.Struct) else None
            if found is not None:
                return found
    return None


def _read_strictly(decode: Callable[[bytes], T], value: bytes) -> T:
    text = str(value, "utf-8")
    if text.strip(" \t\r\n"):  # of an empty one the decoder tells
        _scan(text)
    return decode(value)


def _write(value: Any) -> bytes:
    made = _encode(value)
    # msgspec writes null for what JSON has no number for, and does not say so.
    if b"null" in made and not _finite(value):
        raise ValueError(_NO_NUMBER)
    return made


def _write_rows(row: Callable[..., Any], columns: Sequence[list[Any]]) -> list[bytes]:
    # No document holds a line's end: inside of text it is written as \\n.
    whole = _encode_lines(map(row, *columns))
    made = whole.split(b"\n")
    made.pop()
    if b"null" in whole:
        for number, one in enumerate(made):
            if b"null" in one and not _finite([column[number] for column in columns]):
                raise ValueError(_NO_NUMBER)
    return made


def _finite(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, dict):
        return all(map(_finite, value.values()))
    return all(map(_finite, value)) if isinstance(value, list | tuple) else True


def _unique(pairs: list[tuple[str, Any]]) -> None:
    if len(dict(pairs)) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        msg = f"Object contains the key {twice[:80]!r} more than once"
        raise msgspec.ValidationError(msg)


_encode: Final = msgspec.json.Encoder(decimal_format="number").encode
_encode_lines: Final = msgspec.json.Encoder(decimal_format="number").encode_lines
_NO_NUMBER: Final = "JSON has no NaN and no infinity."

# Made once: json.loads makes a decoder for each call that has a hook.
_scan: Final = json.JSONDecoder(object_pairs_hook=_unique, parse_int=str, parse_float=str).decode

_INTEGERS: Final = {Kind.BYTE: 8, Kind.SHORT: 16, Kind.INT: 32, Kind.LONG: 64}
_PLAIN: Final[dict[Kind, Any]] = {
    Kind.BOOLEAN: bool,
    Kind.FLOAT: float,
    Kind.DOUBLE: float,
    Kind.DECIMAL: Decimal,
    Kind.STRING: str,
    Kind.BINARY: bytes,
    Kind.DATE: date,
    Kind.TIMESTAMP: datetime,
    Kind.TIMESTAMP_NTZ: Annotated[datetime, Meta(tz=False)],
    Kind.DURATION: timedelta,
}


def _declared(type: Any) -> Shape | None:
    if isinstance(type, str):
        return parse_ddl(type)
    if hasattr(type, "jsonValue"):
        return parse_json_type((type() if isinstance(type, builtins.type) else type).jsonValue())
    return None


def _dicts(shape: Shape) -> Callable[[bytes], Any]:
    decode = msgspec.json.Decoder(_decodable(shape)).decode
    finish = _finisher(shape)
    return decode if finish is None else lambda value: finish(decode(value), "$")


def _decodable(shape: Shape) -> Any:
    """The type that msgspec reads for a shape."""
    made: Any
    match shape.kind:
        case Kind.STRUCT:
            members = {field.name: _member(field) for field in shape.fields}
            made = cast("Any", TypedDict)("Document", members)
        case Kind.ARRAY:
            made = list[_decodable(inside(shape.element))]  # type: ignore[misc]
        case Kind.MAP:
            key, element = _decodable(inside(shape.key)), _decodable(inside(shape.element))
            made = dict[key, element]  # type: ignore[valid-type]
        case Kind.BYTE | Kind.SHORT | Kind.INT | Kind.LONG:
            half = 1 << (_INTEGERS[shape.kind] - 1)
            made = Annotated[int, Meta(ge=-half, le=half - 1)]
        case _:
            made = _PLAIN[shape.kind]
    return made | None if shape.nullable else made


def _member(field: Field) -> Any:
    declared = _decodable(field.shape)
    return NotRequired[declared] if field.shape.nullable else declared


def _finisher(shape: Shape) -> Finish | None:
    """What makes None of absent fields and checks decimals; None where msgspec has done all."""
    match shape.kind:
        case Kind.DECIMAL:
            return partial(_checked_decimal, shape.precision, shape.scale)
        case Kind.ARRAY | Kind.MAP:
            inner = _finisher(inside(shape.element))
            if inner is None:
                return None
            return partial(_finished_list if shape.kind is Kind.ARRAY else _finished_map, inner)
        case Kind.STRUCT:
            inners = {field.name: _finisher(field.shape) for field in shape.fields}
            found = [(name, inner) for name, inner in inners.items() if inner is not None]
            if not found and not any(field.shape.nullable for field in shape.fields):
                return None
            return partial(_finished_struct, dict.fromkeys(inners), found)
        case _:
            return None


def _finished_struct(
    absent: dict[str, None], inners: list[tuple[str, Finish]], value: dict[str, Any], path: str
) -> dict[str, Any]:
    if len(value) < len(absent):
        value = {**absent, **value}
    for name, inner in inners:
        if value[name] is not None:
            value[name] = inner(value[name], f"{path}.{name}")
    return value


def _finished_list(inner: Finish, value: list[Any], path: str) -> list[Any]:
    return [None if one is None else inner(one, f"{path}[...]") for one in value]


def _finished_map(inner: Finish, value: dict[Any, Any], path: str) -> dict[Any, Any]:
    return {key: None if one is None else inner(one, f"{path}[...]") for key, one in value.items()}


def _checked_decimal(precision: int, scale: int, value: Decimal, path: str) -> Decimal:
    if not _fits(value, precision, scale):
        msg = f"Expected `decimal({precision},{scale})`, got {str(value)[:40]} - at `{path}`"
        raise msgspec.ValidationError(msg)
    return value


def _fits(value: Decimal, precision: int, scale: int) -> bool:
    _, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):  # NaN or infinite
        return False
    whole = len(digits) + exponent
    # By hand: Decimal.normalize would round to the context's 28 digits.
    while len(digits) > 1 and digits[-1] == 0:
        digits, exponent = digits[:-1], exponent + 1
    return not value or (-exponent <= scale and whole <= precision - scale)
