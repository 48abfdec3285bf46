"""A lane: the values of one batch between two stages, and what each belongs to.

Values are Python objects, or rows of Arrow columns in front of a stage that has not read them.

A *unit* is what leaves the flow as one: the record's row in the batch, or, for
an element of a partial flat_map, a pair of row and path.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from typing import Any

import pyarrow as pa

Unit = int | tuple[int, str]


@dataclass(frozen=True, slots=True)
class Lane:
    """Values and their units.

    Attributes:
        values: what the next stage gets.
        units: None or a range while every value is its own row, which is the good path.
        fanned: a flat_map ran, so several values may belong to one unit.
    """

    values: list[Any] | pa.RecordBatch
    units: Sequence[Unit] | None = None
    fanned: bool = False

    def bare(self) -> Lane:
        """The lane without its values, so that they need not live on for their units."""
        units = range(len(self.values)) if self.units is None else self.units
        return replace(self, values=[], units=units)

    @property
    def columnar(self) -> bool:
        """Whether the values are rows of columns that no stage has read yet."""
        return not isinstance(self.values, list)

    @property
    def whole(self) -> bool:
        """Whether nothing has left, and each value is its own row."""
        return self.units is None or isinstance(self.units, range)

    def unit(self, position: int) -> Unit:
        """The unit of the value at a position."""
        return position if self.units is None else self.units[position]

    def rows(self) -> Iterable[int]:
        """The row of each value."""
        if self.units is None:
            return range(len(self.values))
        return self.units if isinstance(self.units, range) else map(row_of, self.units)

    def records(self) -> int:
        """How many records the values belong to."""
        return len(set(self.rows())) if self.fanned else len(self.values)

    def become(self, values: list[Any] | pa.RecordBatch, lost: Collection[int]) -> Lane:
        """The lane with what a stage made of its values, but for those at the lost positions."""
        if not lost:
            return replace(self, values=values)
        kept = self._without(lost)
        return replace(self, values=values, units=kept)

    def without(self, lost: Collection[int]) -> Lane:
        """The lane without the values at some positions."""
        if not lost:
            return self
        keep = _flags(len(self.values), lost)
        return replace(self, values=_chosen(self.values, keep), units=self._without(lost))

    def keep(self, flags: Sequence[object]) -> Lane:
        """The lane with only the values whose flag is true."""
        units = range(len(self.values)) if self.units is None else self.units
        return replace(self, values=_chosen(self.values, flags), units=list(compress(units, flags)))

    def without_units(self, gone: Collection[Unit]) -> Lane:
        """The lane without every value of the units that left the flow."""
        if not self.fanned or not gone or self.units is None:
            return self
        return self.keep([unit not in gone for unit in self.units])

    def _without(self, lost: Collection[int]) -> list[Unit]:
        units = range(len(self.values)) if self.units is None else self.units
        return list(compress(units, _flags(len(self.values), lost)))


def _chosen(values: list[Any] | pa.RecordBatch, flags: Iterable[object]) -> Any:
    if isinstance(values, list):
        return list(compress(values, flags))
    return values.filter(pa.array(map(bool, flags), pa.bool_()))


def row_of(unit: Unit) -> int:
    """The row of a unit's record."""
    return unit if isinstance(unit, int) else unit[0]


def path_of(unit: Unit) -> str:
    """The path of an element within its record; empty for whole records."""
    return "" if isinstance(unit, int) else unit[1]


def inner(unit: Unit, step: str, element: int) -> tuple[int, str]:
    """The unit of an element that a partial flat_map made of a unit's value."""
    path = path_of(unit)
    return row_of(unit), f"{path}/{step}[{element}]" if path else f"{step}[{element}]"


def _flags(size: int, lost: Collection[int]) -> bytearray:
    keep = bytearray(b"\1") * size
    for position in lost:
        keep[position] = 0
    return keep
