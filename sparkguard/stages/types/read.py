"""Annotation -> shape: what a stage's return annotation means to Spark."""

from __future__ import annotations

import datetime as dt
import enum
import types
import uuid
from collections import abc
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    NoReturn,
    TypeVar,
    Union,
    get_args,
    get_origin,
)

from sparkguard.core.ddl import parse_ddl, parse_json_type
from sparkguard.core.shape import Field, Kind, Shape, Unwrap
from sparkguard.errors import StageError
from sparkguard.stages.types.members import members_of, unaliased

_SCALARS: Final = (
    # The order matters: bool is an int, and a datetime is a date.
    (bool, Shape(kind=Kind.BOOLEAN, label="bool")),
    (int, Shape(kind=Kind.LONG, label="int")),
    (float, Shape(kind=Kind.DOUBLE, label="float")),
    (str, Shape(kind=Kind.STRING, label="str")),
    (bytes, Shape(kind=Kind.BINARY, label="bytes")),
    (bytearray, Shape(kind=Kind.BINARY, label="bytearray")),
    (memoryview, Shape(kind=Kind.BINARY, label="memoryview")),
    (Decimal, Shape(kind=Kind.DECIMAL, label="Decimal(38,18)")),
    (dt.datetime, Shape(kind=Kind.TIMESTAMP, label="datetime")),
    (dt.date, Shape(kind=Kind.DATE, label="date")),
    (dt.timedelta, Shape(kind=Kind.DURATION, label="timedelta")),
    (uuid.UUID, Shape(kind=Kind.STRING, label="UUID", unwrap=Unwrap.UUID)),
)
_ARRAYS: Final = frozenset(
    {list, set, frozenset, tuple, abc.Sequence, abc.MutableSequence, abc.Set, abc.Collection}
)
_MAPS: Final = frozenset({dict, abc.Mapping, abc.MutableMapping})


def shape_of(annotation: Any, *, where: str = "") -> Shape:
    """The shape of values of an annotated type, a DDL string, or a pyspark ``DataType``.

    Args:
        where: what the sentence of an error begins with, like ``stage 'price'``.

    Raises:
        StageError: Spark has no such type; names the path to it.
    """
    return _Reader(where=where).read(annotation, "")


@dataclass(frozen=True, slots=True)
class _Reader:
    """Walks an annotation; knows the classes it is inside of."""

    where: str
    inside: tuple[Any, ...] = ()

    def read(self, annotation: Any, path: str) -> Shape:
        annotation = unaliased(annotation)
        if isinstance(annotation, str):
            return self._declared(annotation, path)
        if hasattr(annotation, "jsonValue"):  # a DataType of pyspark
            return self._data_type(annotation, path)
        if annotation in _ARRAYS or annotation in _MAPS:
            self._fail(path, annotation, "says not of what; write list[int] or dict[str, int]")
        origin = get_origin(annotation)
        special: Mapping[Any, Callable[[Any, str], Shape]] = {
            Annotated: self._annotated,
            Union: self._union,
            types.UnionType: self._union,
            Literal: self._literal,
            **dict.fromkeys(_ARRAYS, self._array),
            **dict.fromkeys(_MAPS, self._map),
        }
        return special.get(origin, self._class)(annotation, path)

    def _declared(self, ddl: str, path: str) -> Shape:
        try:
            return parse_ddl(ddl)
        except StageError as error:
            msg = f"{self._place(path)}{error.problem}"
            raise StageError(msg) from None

    def _data_type(self, declared: Any, path: str) -> Shape:
        try:
            instance = declared() if isinstance(declared, type) else declared
            return parse_json_type(instance.jsonValue())
        except (StageError, TypeError) as error:
            msg = f"{self._place(path)}{getattr(error, 'problem', error)}"
            raise StageError(msg) from None

    def _annotated(self, annotation: Any, path: str) -> Shape:
        base, *extras = get_args(annotation)
        shape = self.read(base, path)
        for extra in extras:
            # Annotated[Decimal, "decimal(10,2)"] narrows what Spark stores.
            narrowed = _narrowed(shape, extra) if isinstance(extra, str) else None
            if narrowed is not None:
                return narrowed
        return shape

    def _union(self, annotation: Any, path: str) -> Shape:
        parts = get_args(annotation)
        real = [part for part in parts if part not in (None, type(None))]
        if len(real) != 1:
            self._fail(path, annotation, "is a choice of several types, and a column has one")
        shape = self.read(real[0], path)
        return shape.optional() if len(real) < len(parts) else shape

    def _literal(self, annotation: Any, path: str) -> Shape:
        values = get_args(annotation)
        shape = self._common([type(v) for v in values if v is not None], annotation, path)
        return shape.optional() if None in values else shape

    def _common(self, kinds: list[type], annotation: Any, path: str) -> Shape:
        shapes = {self.read(kind, path) for kind in kinds}
        if len(shapes) != 1:
            self._fail(path, annotation, "has values of several types, and a column has one")
        return shapes.pop()

    def _array(self, annotation: Any, path: str) -> Shape:
        parts = [part for part in get_args(annotation) if part is not Ellipsis]
        if len(set(parts)) != 1:
            self._fail(path, annotation, "has elements of several types; use a NamedTuple")
        element = self.read(parts[0], f"{path}[]")
        return Shape(kind=Kind.ARRAY, element=element, label=_written(annotation))

    def _map(self, annotation: Any, path: str) -> Shape:
        key_type, value_type = get_args(annotation)
        key, element = self.read(key_type, f"{path}.key"), self.read(value_type, f"{path}.value")
        if key.nullable or key.kind is Kind.MAP:
            self._fail(path, annotation, "has keys that Spark's maps cannot have")
        return Shape(kind=Kind.MAP, key=key, element=element, label=_written(annotation))

    def _class(self, annotation: Any, path: str) -> Shape:
        try:
            members = members_of(annotation)
        except Exception as error:
            msg = (
                f"{self._place(path)}The annotations of {_written(annotation)} cannot be "
                f"resolved: {error}."
            )
            raise StageError(msg) from error
        if members is not None:
            return self._struct(annotation, members.members, path, take=members.take)
        if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
            return self._enum(annotation, path)
        for cls, shape in _SCALARS:
            if isinstance(annotation, type) and issubclass(annotation, cls):
                return shape
        return self._fail(path, annotation, "is no type that Spark has")

    def _struct(self, annotation: Any, members: Any, path: str, **how: Any) -> Shape:
        if annotation in self.inside:
            self._fail(path, annotation, "contains itself, and Spark's types are finite")
        if not members:
            self._fail(path, annotation, "has no fields")
        reader = replace(self, inside=(*self.inside, annotation))
        fields = []
        for member in members:
            shape = reader.read(member.annotation, f"{path}.{member.name}".lstrip("."))
            shape = shape if member.required else shape.optional()
            fields.append(Field(name=member.name, shape=shape, required=member.required))
        self._refuse_twins(annotation, [field.name for field in fields], path)
        return Shape(kind=Kind.STRUCT, fields=tuple(fields), label=_written(annotation), **how)

    def _refuse_twins(self, annotation: Any, names: list[str], path: str) -> None:
        lower = [name.lower() for name in names]
        if len(set(lower)) < len(lower):
            self._fail(path, annotation, "has fields that differ in case only, Spark's do not")

    def _enum(self, annotation: type[enum.Enum], path: str) -> Shape:
        if not len(annotation):
            self._fail(path, annotation, "has no members")
        shape = self._common([type(member.value) for member in annotation], annotation, path)
        return replace(shape, unwrap=Unwrap.ENUM, label=annotation.__name__)

    def _place(self, path: str) -> str:
        parts = [part for part in (self.where, f"field {path!r}" if path else "") if part]
        return f"{', '.join(parts)}: " if parts else ""

    def _fail(self, path: str, annotation: Any, reason: str) -> NoReturn:
        hint = " Say returns= with a DDL string to declare it otherwise."
        msg = f"{self._place(path)}{_written(annotation)} {reason}.{hint}"
        raise StageError(msg)


def _narrowed(shape: Shape, extra: str) -> Shape | None:
    try:
        declared = parse_ddl(extra)
    except StageError:
        return None
    families = (
        {Kind.BYTE, Kind.SHORT, Kind.INT, Kind.LONG},
        {Kind.FLOAT, Kind.DOUBLE},
        {Kind.DECIMAL},
        {Kind.TIMESTAMP, Kind.TIMESTAMP_NTZ},
    )
    if any({shape.kind, declared.kind} <= family for family in families):
        return replace(declared, nullable=shape.nullable)
    return None


def _written(annotation: Any) -> str:
    if isinstance(annotation, TypeVar):
        return f"the type variable {annotation.__name__}"
    if isinstance(annotation, type) and not get_args(annotation):
        return annotation.__name__
    return str(annotation).replace("typing.", "")
