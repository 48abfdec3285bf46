"""Halving: which rows of a batch a vectorised function does not take, in few calls.

The batch is halved until the bad rows stand alone: k of n rows cost about 2 k log2(n/k) calls.
Only poison is looked for so. An outage is no row's fault, and neither is a bug.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

import pyarrow as pa

from sparkguard.core.partial import PartialFailure

Given: TypeAlias = pa.RecordBatch | BaseException


@dataclass(frozen=True, slots=True, kw_only=True)
class Met:
    """What rows of a batch met: their result, or the exception that is decided about.

    Attributes:
        rows: their places in the batch; several with an exception where it is theirs together.
        exhausted: the bad rows were not found within the calls allowed.
    """

    rows: range
    result: pa.RecordBatch | None = None
    error: BaseException | None = None
    exhausted: bool = False


@dataclass(slots=True, kw_only=True)
class Halving:
    """The calls over one batch.

    Attributes:
        call: what the rows give, or the exception that they met.
        named: what a function gave that names its bad rows, as the declared columns.
        is_poison: whether an exception is the fault of some row.
        limit: of the calls in all.
    """

    call: Callable[[pa.RecordBatch], Given]
    named: Callable[[PartialFailure, int], Given]
    is_poison: Callable[[BaseException], bool]
    limit: int
    _calls: int = field(default=0, init=False)

    def over(self, batch: pa.RecordBatch) -> Iterator[Met]:
        """What the rows met, in their order; every row of the batch once."""
        waiting = [range(batch.num_rows)] if batch.num_rows else []
        while waiting:
            rows = waiting.pop()
            self._calls += 1
            given = self.call(batch.slice(rows.start, len(rows)))
            if isinstance(given, PartialFailure):
                told, given = given, self.named(given, len(rows))
                if not isinstance(given, BaseException):
                    yield from _pieces(told, rows, given)
                    continue
            if not isinstance(given, BaseException):
                yield Met(rows=rows, result=given)
            elif len(rows) == 1 or not self.is_poison(given):
                yield Met(rows=rows, error=given)
            elif self._calls >= self.limit:
                yield Met(rows=rows, error=given, exhausted=True)
            else:
                middle = len(rows) // 2
                waiting += (rows[middle:], rows[:middle])


def _pieces(told: PartialFailure, rows: range, result: pa.RecordBatch) -> Iterator[Met]:
    """The good rows between the bad ones, and the bad ones."""
    begin = taken = 0
    for row in (*sorted(told.failed), len(rows)):
        if row > begin:
            yield Met(rows=rows[begin:row], result=result.slice(taken, row - begin))
            taken += row - begin
        if row < len(rows):
            yield Met(rows=rows[row : row + 1], error=told.failed[row])
        begin = row + 1
