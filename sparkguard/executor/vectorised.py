"""A vectorised function: what it gets, what it must give, and what becomes of its bad rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from sparkguard.core.partial import PartialFailure
from sparkguard.core.shape import Shape
from sparkguard.executor.attempt import Attempt, Recovered, Trouble
from sparkguard.executor.encode import schema_of
from sparkguard.executor.halving import Given, Halving, Met
from sparkguard.executor.scalars import zone_of


class RowsError(ValueError):
    """A vectorised function gave other rows than one for each."""


class ColumnsError(TypeError):
    """A vectorised function gave no columns, or other ones than it declares."""


class Call:
    """A stage's function, from record batch to record batch of the declared columns."""

    def __init__(
        self, function: Callable[[Any], Any], gives: Shape, *, pandas: bool, zone: str = "UTC"
    ) -> None:
        self._function = function
        self._pandas = pandas
        self._zone = str(zone_of(zone)).removeprefix("UTC") or "UTC"
        self.schema = schema_of(gives)

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """What the function gives for the rows.

        Raises:
            BaseException: what the function raises.
            RowsError, ColumnsError: it gave something else than it promised.
        """
        # Otherwise one null makes all whole numbers of its column floats, and long ids others.
        frame = batch.to_pandas(integer_object_nulls=True) if self._pandas else batch
        given = self._function(frame)
        return self.fitted(given, batch.num_rows)

    def named(self, told: PartialFailure, rows: int) -> Given:
        """The result for the rows that are not named as bad; or what is wrong with it."""
        bad = list(told.failed)
        if not bad or not all(0 <= row < rows for row in bad):
            return RowsError(f"PartialFailure names rows {bad[:5]} of a batch of {rows:,}.")
        if len(bad) == rows and told.result is None:
            return pa.RecordBatch.from_pylist([], schema=self.schema)
        try:
            return self.fitted(told.result, rows - len(bad))
        except Exception as error:
            return error

    def fitted(self, given: Any, rows: int) -> pa.RecordBatch:
        """The declared columns of what the function gave.

        Raises:
            RowsError: the number of rows, or a null, is not as promised.
            ColumnsError: a column is missing, or these are no columns.
            pa.ArrowException: a value is none of its column's type.
        """
        made = self._columns(given)
        if made.num_rows != rows:
            msg = (
                f"The function gave {made.num_rows:,} rows for {rows:,}; it must give one for "
                "each, in their order. Rows leave by a filter, bad ones by PartialFailure."
            )
            raise RowsError(msg)
        for column, declared in zip(made.columns, self.schema, strict=True):
            if column.null_count and not declared.nullable:
                raise RowsError(f"Column {declared.name!r} has a null, and is declared without.")
        return made

    def _columns(self, given: Any) -> pa.RecordBatch:
        if isinstance(given, pa.RecordBatch | pa.Table):
            self._refuse_missing(given.schema.names)
            found = (_one(given.column(name)) for name in self.schema.names)
            arrays = [
                self._aware(column, kind).cast(kind)
                for column, kind in zip(found, self.schema.types, strict=True)
            ]
            return pa.RecordBatch.from_arrays(arrays, schema=self.schema)
        if not hasattr(given, "dtypes") or not hasattr(given, "columns"):
            kind = type(given).__name__
            raise ColumnsError(f"The function gave {kind}, neither RecordBatch nor DataFrame.")
        self._refuse_missing([str(name) for name in given.columns])
        for name, kind in zip(self.schema.names, self.schema.types, strict=True):
            if name in given.columns and str(given[name].dtype) in _NAIVE:
                aware = self._aware(pa.Array.from_pandas(given[name]), kind)
                given = given.assign(**{name: aware.to_pandas().array})
        return pa.RecordBatch.from_pandas(given, schema=self.schema, preserve_index=False)

    def _aware(self, column: pa.Array, kind: pa.DataType) -> pa.Array:
        """Times without a zone are the session's, as those of record stages are."""
        naive = pa.types.is_timestamp(column.type) and column.type.tz is None
        if not naive or not pa.types.is_timestamp(kind) or kind.tz is None:
            return column
        return pc.assume_timezone(column, self._zone, ambiguous="earliest", nonexistent="latest")

    def _refuse_missing(self, names: list[str]) -> None:
        twice = next((name for name in self.schema.names if names.count(name) > 1), None)
        if twice is not None:
            raise ColumnsError(f"The function gave several columns named {twice!r}.")
        missing = [name for name in self.schema.names if name not in names]
        if missing:
            have = ", ".join(names) or "none"
            raise ColumnsError(f"The function gave no column {missing[0]!r}; it gave: {have}.")


_NAIVE = {f"datetime64[{unit}]" for unit in ("s", "ms", "us", "ns")}


def _one(column: Any) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


@dataclass(slots=True, kw_only=True)
class Vectorised:
    """One stage over one batch.

    Attributes:
        leave: lets the row at a place of the batch leave, unless trying it again helps.
        give_up: raises that the stage failed at a row.
        limit: of calls for one batch.
    """

    call: Call
    attempt: Attempt
    leave: Callable[[int, Trouble], Recovered | None]
    give_up: Callable[[int, BaseException, str], None]
    limit: int
    _attempts: int = field(default=0, init=False)
    _uneven: RowsError | None = field(default=None, init=False)

    def over(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, list[int]]:
        """What the function gave for the good rows, in order, and the places of the others."""
        made: list[pa.RecordBatch] = []
        lost: list[int] = []
        halving = Halving(
            call=self._tried,
            named=self.call.named,
            is_poison=self.attempt.is_poison,
            limit=self.limit,
        )
        for met in halving.over(batch):
            if met.error is None:
                self.attempt.progressed()
                made.append(met.result)
                continue
            if met.exhausted:
                self._give_up(met)
            for row in met.rows:
                kept = self._refused(batch.slice(row, 1), row, met.error)
                if kept is None:
                    lost.append(row)
                else:
                    made.append(kept.value)
        if self._uneven is not None and not lost:
            # A mean, or a head: nothing is wrong with any row, and all of them would be wrong.
            self.give_up(0, self._uneven, "and each row alone gives one row")
        table = pa.Table.from_batches(made, self.call.schema).combine_chunks()
        columns = [_one(column) for column in table.columns]
        return pa.RecordBatch.from_arrays(columns, schema=self.call.schema), lost

    def _tried(self, part: pa.RecordBatch) -> Given:
        self._attempts = 0
        try:
            return self.call(part)
        except BaseException as error:  # whatever user code raises is a failure (P11)
            raised = error
        if isinstance(raised, RowsError):
            self._uneven = self._uneven or raised
        if isinstance(raised, PartialFailure) or self.attempt.is_poison(raised):
            return raised
        ended = self.attempt.retried(raised, partial(self.call, part))
        if isinstance(ended, Recovered):
            given: Given = ended.value
            return given
        # Of rows that the function names, each is tried again by itself.
        self._attempts = 0 if isinstance(ended.error, PartialFailure) else ended.attempts
        return ended.error

    def _refused(self, one: pa.RecordBatch, row: int, error: BaseException) -> Recovered | None:
        if self._attempts:
            return self.leave(row, Trouble(error=error, attempts=self._attempts))

        def again() -> pa.RecordBatch:
            try:
                return self.call(one)
            except PartialFailure as told:
                raise told.failed.get(0, told) from None

        return self.leave(row, Trouble(error=error, again=again))

    def _give_up(self, met: Met) -> None:
        reason = (
            f"the bad rows of a batch were not found in {self.limit:,} calls "
            "(isolate.max_calls); too many of them are bad"
        )
        self.give_up(met.rows.start, met.error or RowsError(), reason)
