"""Rows: a frame that is not Kafka's, as what the first stage takes.

Reading is by batch, and by row where that fails; converting is by row. So a row that Python
cannot hold, or that is not of the stage's type, is that record's failure.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import msgspec
import pyarrow as pa

Read = Callable[[pa.RecordBatch], list[Any]]
Convert = Callable[[Any], Any]


class UnreadableError(ValueError):
    """A row holds a value that Python has not: a date beyond 9999, text that is no UTF-8."""


def read_one(read: Read, batch: pa.RecordBatch, row: int) -> Any:
    """One row of a batch that cannot be read as a whole.

    Raises:
        UnreadableError: this is the row; names the column.
    """
    one = batch.slice(row, 1)
    try:
        (value,) = read(one)
    except Exception as error:
        for field, column in zip(one.schema, one.columns, strict=True):
            try:
                column.to_pylist()
            except Exception as reason:
                said = f"Python cannot hold the value of column {field.name!r}: {reason}."
                raise UnreadableError(said) from error
        said = f"Python cannot hold the row: {error}."
        raise UnreadableError(said) from error
    return value


def row_reader(input_type: Any) -> tuple[Read, Convert | None]:
    """How rows become objects of the first stage's input type.

    Returns:
        What reads a batch as a list, and what then converts one element, or None where
        reading is enough. Both pickle. ``Row`` and types that say nothing (Any, none) give
        a pyspark ``Row``; dict gives dicts; a struct, dataclass, TypedDict or pydantic model
        is converted, its fields by attribute name or alias; anything else takes the frame's
        only column.
    """
    plain = _without_none(input_type)
    origin = get_origin(plain) or plain
    if plain is Any or plain is object or _is_row(origin):
        return RowReader(), None
    if isinstance(origin, type) and issubclass(origin, Mapping) and not _has_fields(origin):
        return DictReader(), (Convertor(type=plain) if get_args(plain) else None)
    if hasattr(origin, "__pydantic_validator__"):
        return DictReader(aliases=_aliases(origin)), Validate(model=plain)
    if _has_fields(origin):
        return DictReader(aliases=_aliases(origin)), Convertor(type=plain)
    return OnlyColumn(), (None if _is_plain(origin) else Convertor(type=plain))


@dataclass(frozen=True, slots=True)
class RowReader:
    """Reads a batch as pyspark Rows, structs inside as Rows too."""

    def __call__(self, batch: pa.RecordBatch) -> list[Any]:
        """The rows of the batch."""
        from pyspark.sql import Row

        kind = Row(*batch.schema.names)
        return [kind(*row.values()) for row in _dicts(batch, as_row=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class DictReader:
    """Reads a batch as dicts.

    Attributes:
        aliases: what a column is called in the dict, where that is not its own name.
    """

    aliases: tuple[tuple[str, str], ...] = ()

    def __call__(self, batch: pa.RecordBatch) -> list[Any]:
        """The rows of the batch."""
        aliases = dict(self.aliases)
        if aliases:
            names = [aliases.get(name, name) for name in batch.schema.names]
            batch = batch.rename_columns(names)
        return _dicts(batch, as_row=False)


@dataclass(frozen=True, slots=True)
class OnlyColumn:
    """Reads the only column of a batch."""

    def __call__(self, batch: pa.RecordBatch) -> list[Any]:
        """The values of the column."""
        (column,) = batch.columns
        values: list[Any] = column.to_pylist()
        fix = _fix(column.type, as_row=False)
        return values if fix is None else [None if v is None else fix(v) for v in values]


@dataclass(frozen=True, slots=True, kw_only=True)
class Convertor:
    """Makes one object of one row with msgspec; strictly, nothing is coerced."""

    type: Any

    def __call__(self, row: Any) -> Any:
        """The object.

        Raises:
            msgspec.ValidationError: the row is none of the type.
        """
        return msgspec.convert(row, self.type)


@dataclass(frozen=True, slots=True, kw_only=True)
class Validate:
    """Makes one pydantic model of one row, by the model's own rules."""

    model: Any

    def __call__(self, row: Any) -> Any:
        """The model; raises pydantic's ValidationError."""
        return self.model.__pydantic_validator__.validate_python(row)


def _without_none(annotation: Any) -> Any:
    origin = get_origin(annotation)
    if origin is Annotated:
        return _without_none(get_args(annotation)[0])
    if origin in (Union, UnionType):
        real = [part for part in get_args(annotation) if part is not type(None)]
        return _without_none(real[0]) if len(real) == 1 else annotation
    return annotation


def _is_row(cls: Any) -> bool:
    return getattr(cls, "__name__", "") == "Row" and cls.__module__ == "pyspark.sql.types"


def _has_fields(cls: Any) -> bool:
    if typing.is_typeddict(cls):
        return True
    return any(
        hasattr(cls, mark)
        for mark in ("__struct_fields__", "__dataclass_fields__", "__attrs_attrs__", "_fields")
    )


def _is_plain(cls: Any) -> bool:
    """Whether Arrow already gives values of this type, so that nothing is left to convert."""
    return not isinstance(cls, type) or cls.__module__ in {"builtins", "datetime", "decimal"}


def _aliases(cls: Any) -> tuple[tuple[str, str], ...]:
    """Field names and what the type's JSON calls them; a column may bear either."""
    if hasattr(cls, "__struct_encode_fields__"):
        pairs = list(zip(cls.__struct_fields__, cls.__struct_encode_fields__, strict=True))
    else:
        fields = getattr(cls, "__pydantic_fields__", {})
        pairs = [(name, field.validation_alias) for name, field in fields.items()]
    return tuple((name, alias) for name, alias in pairs if isinstance(alias, str) and alias != name)


def _dicts(batch: pa.RecordBatch, *, as_row: bool) -> list[Any]:
    rows: list[Any] = batch.to_pylist()
    for field in batch.schema:
        fix = _fix(field.type, as_row=as_row)
        if fix is not None:
            for row in rows:
                value = row[field.name]
                row[field.name] = None if value is None else fix(value)
    return rows


def _fix(kind: pa.DataType, *, as_row: bool) -> Convert | None:
    """What makes dicts of Arrow's maps (lists of pairs there), and Rows of structs."""
    if pa.types.is_map(kind):
        # A dict is no key; a Row is one, and what Spark itself gives.
        key, item = _fix(kind.key_type, as_row=True), _fix(kind.item_type, as_row=as_row)
        return partial(_fix_map, key or _same, item or _same)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        inner = _fix(kind.value_type, as_row=as_row)
        return None if inner is None else partial(_fix_list, inner)
    if pa.types.is_struct(kind):
        fixes = {field.name: _fix(field.type, as_row=as_row) for field in kind}
        if as_row:
            return partial(_fix_row, fixes)
        return partial(_fix_struct, fixes) if any(fixes.values()) else None
    return None


def _same(value: Any) -> Any:
    return value


def _fix_map(key: Convert, item: Convert, pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    return {key(k): None if v is None else item(v) for k, v in pairs}


def _fix_list(inner: Convert, values: list[Any]) -> list[Any]:
    return [None if value is None else inner(value) for value in values]


def _fix_struct(fixes: dict[str, Convert | None], value: dict[str, Any]) -> dict[str, Any]:
    return {
        name: part if (fix := fixes[name]) is None or part is None else fix(part)
        for name, part in value.items()
    }


def _fix_row(fixes: dict[str, Convert | None], value: dict[str, Any]) -> Any:
    from pyspark.sql import Row

    return Row(**_fix_struct(fixes, value))
