"""Encode: what a flow gives becomes Arrow columns; a value that does not fit is found.

By column, with the declared type. Where a column cannot be made, its rows are halved
until the bad ones are alone, so that one wrong value costs a few encodings of its batch
and not a check of every value of every batch.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from sparkguard.core.shape import Shape, WrongTypeError, columns_of
from sparkguard.executor.columns import Column, StructColumn, column_of, present_of, spread
from sparkguard.executor.scalars import NoneError, arrow_type, zone_of

__all__ = ["Encoder", "WrongTypeError", "arrow_type"]


def schema_of(shape: Shape) -> pa.Schema:
    """The Arrow schema of rows of this shape."""
    return pa.schema(
        [
            pa.field(field.name, arrow_type(field.shape), nullable=field.shape.nullable)
            for field in columns_of(shape)
        ]
    )


class Encoder:
    """Makes the output columns of one shape; made once a task."""

    def __init__(self, shape: Shape, zone: str = "UTC") -> None:
        self._root: Column = column_of(shape, zone_of(zone))
        self.schema = schema_of(shape)

    def encode(self, values: list[Any]) -> tuple[list[pa.Array], list[tuple[int, Exception]]]:
        """One array a column, and the positions that did not fit, each with its error.

        The arrays hold the other values in order.
        """
        try:
            return self._arrays(values), []
        except Exception:
            # Some value does not fit; looking for it finds the exception that is its own.
            bad = self._misfits(values, 0)
        lost = {position for position, _ in bad}
        kept = [value for position, value in enumerate(values) if position not in lost]
        return self._arrays(kept), bad

    def _arrays(self, values: list[Any]) -> list[pa.Array]:
        if not isinstance(self._root, StructColumn):
            return [self._root.encode(values)]
        shape = self._root.shape
        if not shape.nullable:
            return self._root.arrays(values)
        present, spots = present_of(values, shape)
        return [spread(made, spots) for made in self._root.arrays(present)]

    def _misfits(self, values: list[Any], start: int) -> list[tuple[int, Exception]]:
        """The misfits among values that are known to hold one."""
        if len(values) == 1:
            return [(start, self._explain(values[0]))]
        middle = len(values) // 2
        found: list[tuple[int, Exception]] = []
        for part, at in ((values[:middle], start), (values[middle:], start + middle)):
            try:
                self._arrays(part)
            except Exception:
                # A misfit is in this half; the exception of the value alone is what counts.
                found += self._misfits(part, at)
        return found

    def _explain(self, value: Any) -> Exception:
        try:
            self._arrays([value])
        except Exception as error:
            return _locate("", self._root, value, error)
        return WrongTypeError("", self._root.shape.name, value)


def _locate(path: str, column: Column, value: Any, error: Exception) -> WrongTypeError:
    """The innermost part of a value that cannot be encoded on its own."""
    if value is not None:
        try:
            for step, inner, part in column.parts(value):
                try:
                    inner.encode([part])
                except Exception as deeper:
                    return _locate(f"{path}{step}".lstrip("."), inner, part, deeper)
        except Exception as untaken:  # the value cannot be taken apart: it is the misfit
            error = untaken
    return _wrong(path, column.shape, value, error)


def _wrong(path: str, shape: Shape, value: Any, error: Exception) -> WrongTypeError:
    said = "" if isinstance(error, NoneError) or value is None else str(error)
    reason = said.partition("\n")[0][:120] if not _obvious(said) else ""
    return WrongTypeError(path, shape.name, value, reason=reason)


def _obvious(said: str) -> bool:
    """Whether the conversion said no more than the sentence does: that the type is another."""
    return "Could not convert" in said or "object has no attribute '__index__'" in said
