"""A shape: what a stage gives, described without Spark.

It is made on the driver from an annotation, a DDL string or a StructType, and
travels to the workers, where it says how values become Arrow columns.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

from sparkguard.errors import SparkguardError


class Kind(StrEnum):
    """What Spark knows; the words are those of its DDL."""

    BOOLEAN = "boolean"
    BYTE = "tinyint"
    SHORT = "smallint"
    INT = "int"
    LONG = "bigint"
    FLOAT = "float"
    DOUBLE = "double"
    DECIMAL = "decimal"
    STRING = "string"
    BINARY = "binary"
    DATE = "date"
    TIMESTAMP = "timestamp"
    TIMESTAMP_NTZ = "timestamp_ntz"
    DURATION = "interval day to second"
    ARRAY = "array"
    MAP = "map"
    STRUCT = "struct"


class Take(StrEnum):
    """How a field is taken out of the object that holds it."""

    ATTRIBUTE = "attribute"
    """An attribute: msgspec structs, dataclasses, pydantic models, named tuples."""
    ITEM = "item"
    """A key of a dict: TypedDict."""
    ANY = "any"
    """Whatever the object is (dict, Row, tuple, attributes): declared by DDL or StructType."""


class Unwrap(StrEnum):
    """What a Python value is before it is what Spark stores."""

    NOTHING = "nothing"
    ENUM = "enum"
    """The member's value is stored."""
    UUID = "uuid"
    """The canonical text is stored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One field of a struct.

    Attributes:
        required: a dict without the key is wrong; else it counts as None.
    """

    name: str
    shape: Shape
    required: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The type of one value.

    Attributes:
        nullable: None is a value of this type.
        label: the type as its author wrote it, for sentences.
        fields: of a struct, in order.
        element: of an array, or the values of a map.
        key: the keys of a map.
        precision, scale: of a decimal.
    """

    kind: Kind
    nullable: bool = False
    label: str = ""
    fields: tuple[Field, ...] = ()
    element: Shape | None = None
    key: Shape | None = None
    precision: int = 38
    scale: int = 18
    take: Take = Take.ATTRIBUTE
    unwrap: Unwrap = Unwrap.NOTHING

    @property
    def name(self) -> str:
        """The type as its author wrote it, else as Spark's DDL does."""
        return self.label or self.ddl

    @property
    def ddl(self) -> str:
        """The type in Spark's DDL, without nullability."""
        match self.kind:
            case Kind.DECIMAL:
                return f"decimal({self.precision},{self.scale})"
            case Kind.ARRAY:
                return f"array<{inside(self.element).ddl}>"
            case Kind.MAP:
                return f"map<{inside(self.key).ddl},{inside(self.element).ddl}>"
            case Kind.STRUCT:
                return f"struct<{','.join(f'{f.name}:{f.shape.ddl}' for f in self.fields)}>"
            case _:
                return str(self.kind)

    def optional(self) -> Shape:
        """The same type with None as a value."""
        return self if self.nullable else replace(self, nullable=True)


VALUE: Final = "value"
"""The column of a shape that is no struct."""


def columns_of(shape: Shape) -> tuple[Field, ...]:
    """The columns of rows of this shape: a struct's fields, else one named ``value``.

    Where None stands for a whole struct, every column is nullable: its row is all null.
    """
    if shape.kind is not Kind.STRUCT:
        return (Field(name=VALUE, shape=shape),)
    if shape.nullable:
        return tuple(replace(field, shape=field.shape.optional()) for field in shape.fields)
    return shape.fields


def inside(part: Shape | None) -> Shape:
    """The part of an array or map, which is always there."""
    if part is None:
        msg = "an array or map shape has no element"
        raise ValueError(msg)
    return part


class WrongTypeError(SparkguardError, TypeError):
    """A value is none of its declared type: this record's failure, it will fail again.

    Attributes:
        path: where in the value, like ``items[2].price``; empty for the value itself.
        declared: the declared type.
        given: the value's type.
        shown: the value's repr, at most 80 characters.
        reason: what the conversion said, where that says more.
    """

    def __init__(self, path: str, declared: str, value: Any, *, reason: str = "") -> None:
        self.path = path
        self.declared = declared
        self.given = type(value).__name__
        self.shown = _shown(value)
        self.reason = reason
        subject = f"Field {path!r}" if path else "The value"
        got = "None" if value is None else f"{self.given} {self.shown}"
        tail = f" ({reason})" if reason else ""
        super().__init__(f"{subject} is declared {declared} and got {got}{tail}.")


def _shown(value: object) -> str:
    if isinstance(value, str | bytes | bytearray):
        value = value[:80]
    try:
        text = repr(value)
    except Exception as error:
        text = f"<repr raised {type(error).__name__}>"
    return text if len(text) <= 80 else f"{text[:79]}…"  # noqa: PLR2004
