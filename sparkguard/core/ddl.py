"""Spark's DDL, read without Spark: ``id long, price decimal(10,2) not null``.

Spark's own parser lives in the JVM, and a worker has none.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, NoReturn

from sparkguard.core.shape import Field, Kind, Shape, Take
from sparkguard.errors import StageError

_NAMES: Final = {
    "boolean": Kind.BOOLEAN,
    "byte": Kind.BYTE,
    "tinyint": Kind.BYTE,
    "short": Kind.SHORT,
    "smallint": Kind.SHORT,
    "int": Kind.INT,
    "integer": Kind.INT,
    "long": Kind.LONG,
    "bigint": Kind.LONG,
    "float": Kind.FLOAT,
    "real": Kind.FLOAT,
    "double": Kind.DOUBLE,
    "decimal": Kind.DECIMAL,
    "dec": Kind.DECIMAL,
    "numeric": Kind.DECIMAL,
    "string": Kind.STRING,
    "varchar": Kind.STRING,
    "char": Kind.STRING,
    "character": Kind.STRING,
    "binary": Kind.BINARY,
    "date": Kind.DATE,
    "timestamp": Kind.TIMESTAMP,
    "timestamp_ltz": Kind.TIMESTAMP,
    "timestamp_ntz": Kind.TIMESTAMP_NTZ,
}
_TOKEN: Final = re.compile(
    r"\s*(?:`(?P<quoted>(?:[^`]|``)+)`|(?P<text>'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")"
    r"|(?P<word>\w+)|(?P<sign>[<>(),:]))"
)
_MAX_PRECISION: Final = 38


def parse_ddl(text: str) -> Shape:
    """The shape of a DDL string: a list of columns, or one type like ``array<long>``.

    Columns are nullable unless they say ``not null``, as in Spark.

    Raises:
        StageError: the text is no DDL, or a type that a stage cannot give.
    """
    parser = _Parser(text)
    try:
        return parser.only_type()
    except StageError:
        if parser.looks_like_type:
            raise
    return _Parser(text).only_columns()


def parse_json_type(spec: str | Mapping[str, Any]) -> Shape:
    """The shape of a pyspark ``DataType``, given as its ``jsonValue()``."""
    if isinstance(spec, str):
        return parse_ddl(spec)
    match spec.get("type"):
        case "struct":
            if not spec["fields"]:
                msg = "A struct type has no fields, and a row has at least one column."
                raise StageError(msg)
            return Shape(
                kind=Kind.STRUCT,
                take=Take.ANY,
                fields=tuple(_field(field) for field in spec["fields"]),
            )
        case "array":
            element = _nullable(parse_json_type(spec["elementType"]), spec["containsNull"])
            return Shape(kind=Kind.ARRAY, element=element)
        case "map":
            element = _nullable(parse_json_type(spec["valueType"]), spec["valueContainsNull"])
            return Shape(kind=Kind.MAP, key=parse_json_type(spec["keyType"]), element=element)
        case other:
            msg = f"Spark's type {other!r} is none that a stage can give."
            raise StageError(msg)


def _field(spec: Mapping[str, Any]) -> Field:
    shape = _nullable(parse_json_type(spec["type"]), spec["nullable"])
    return Field(name=spec["name"], shape=shape, required=not shape.nullable)


def _nullable(shape: Shape, nullable: bool) -> Shape:  # noqa: FBT001
    return shape.optional() if nullable else shape


class _Parser:
    """Recursive descent over one DDL string."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[tuple[str, str]] = []
        at = 0
        end = len(text.rstrip())
        while at < end:
            match = _TOKEN.match(text, at)
            if match is None:
                self._fail(f"cannot read {text[at : at + 20].strip()!r}")
            kind = str(match.lastgroup)
            self._tokens.append((kind, match[kind].replace("``", "`")))
            at = match.end()
        self._at = 0

    @property
    def looks_like_type(self) -> bool:
        """Whether the text can only have been meant as one type."""
        return len(self._tokens) == 1 or self._tokens[1:2] in ([("sign", "<")], [("sign", "(")])

    def only_type(self) -> Shape:
        shape = self._type()
        if self._peek():
            self._fail(f"{self._peek()!r} is one word too many")
        return shape

    def only_columns(self) -> Shape:
        fields = self._fields("")
        if self._peek():
            self._fail(f"{self._peek()!r} is one word too many")
        return Shape(kind=Kind.STRUCT, take=Take.ANY, fields=fields)

    def _fields(self, end: str) -> tuple[Field, ...]:
        fields: list[Field] = []
        while self._peek() != end:
            if fields:
                self._expect(",")
            fields.append(self._one_field())
        if not fields:
            self._fail("it names no column")
        names = [field.name.lower() for field in fields]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            self._fail(f"the column {twice!r} stands there twice")
        return tuple(fields)

    def _one_field(self) -> Field:
        kind, name = self._next()
        if kind not in {"word", "quoted"}:
            self._fail(f"{name!r} is no column name")
        if self._peek() == ":":
            self._next()
        shape = self._type().optional()
        if self._peek() == "not":
            self._next()
            self._expect("null")
            shape = replace(shape, nullable=False)
        if self._peek() == "comment":
            self._next()
            self._next()
        return Field(name=name, shape=shape, required=not shape.nullable)

    def _type(self) -> Shape:
        kind, word = self._next()
        name = word.lower()
        if kind != "word":
            self._fail(f"{word!r} is no type")
        match name:
            case "array":
                self._expect("<")
                element = self._type().optional()
                self._expect(">")
                return Shape(kind=Kind.ARRAY, element=element)
            case "map":
                self._expect("<")
                key = self._type()
                self._expect(",")
                element = self._type().optional()
                self._expect(">")
                return Shape(kind=Kind.MAP, key=key, element=element)
            case "struct":
                self._expect("<")
                fields = self._fields(">")
                self._expect(">")
                return Shape(kind=Kind.STRUCT, take=Take.ANY, fields=fields)
            case "interval":
                return self._interval()
            case _:
                if name not in _NAMES:
                    self._fail(f"{word!r} is no type that a stage can give")
                return self._scalar(_NAMES[name])

    def _scalar(self, kind: Kind) -> Shape:
        numbers = []
        if self._peek() == "(":
            self._next()
            while self._peek() != ")":
                numbers.append(self._number())
                if self._peek() == ",":
                    self._next()
            self._expect(")")
        if kind is not Kind.DECIMAL:
            return Shape(kind=kind)
        precision, scale = (*numbers, 0)[:2] if numbers else (10, 0)
        if not 0 <= scale <= precision <= _MAX_PRECISION or not precision:
            self._fail(f"decimal({precision},{scale}) is none, 38 digits are the most")
        return Shape(kind=kind, precision=precision, scale=scale)

    def _interval(self) -> Shape:
        units = {"day", "hour", "minute", "second"}
        words = [self._next()[1].lower()]
        while self._peek() == "to":
            self._next()
            words.append(self._next()[1].lower())
        if not units.issuperset(words):
            self._fail(f"'interval {' to '.join(words)}' is none that a stage can give")
        return Shape(kind=Kind.DURATION)

    def _number(self) -> int:
        word = self._next()[1]
        if not word.isdecimal():
            self._fail(f"{word!r} is no number")
        return int(word)

    def _peek(self) -> str:
        if self._at >= len(self._tokens):
            return ""
        kind, text = self._tokens[self._at]
        return text.lower() if kind in {"word", "sign"} else f"`{text}`"

    def _next(self) -> tuple[str, str]:
        if self._at >= len(self._tokens):
            self._fail("it ends too early")
        self._at += 1
        return self._tokens[self._at - 1]

    def _expect(self, text: str) -> None:
        found = self._peek()
        if found != text:
            self._fail(f"{text!r} is missing before {found!r}" if found else f"{text!r} is missing")
        self._at += 1

    def _fail(self, reason: str) -> NoReturn:
        msg = f"{self._text!r} is no schema: {reason}."
        raise StageError(msg)
