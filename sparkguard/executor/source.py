"""The records of one Arrow batch, read by index only when one fails."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import cached_property
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from sparkguard.core.ledger import Span
from sparkguard.core.record import Header, Record
from sparkguard.executor.plan import Layout

_FEW = 8
"""Fewer rows than this are cheaper to read one by one."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Source:
    """An Arrow batch whose columns become Python objects on demand."""

    def __init__(self, batch: pa.RecordBatch, layout: Layout) -> None:
        self.batch = batch
        self._layout = layout

    @cached_property
    def _arrays(self) -> list[pa.Array]:
        # A batch makes a new object each time that it is asked for a column.
        arrays: list[pa.Array] = self.batch.columns
        return arrays

    def record(self, row: int) -> Record:
        """The record of one row, as it came in."""
        at = self._layout
        return Record(
            key=_bytes(self._get(at.key, row)),
            value=_bytes(self._get(at.value, row)),
            headers=self._headers(at.headers, row),
            timestamp=self._instant(at.timestamp, row),
            topic=self._get(at.topic, row),
            partition=self._get(at.partition, row),
            offset=self._get(at.offset, row),
            file=self._get(at.file, row),
            columns=self._columns(row),
        )

    def records(self, rows: Sequence[int]) -> list[Record]:
        """The records of several rows; many at once cost less than half of each alone."""
        if len(rows) < _FEW:
            return [self.record(row) for row in rows]
        at, taken = self._layout, pa.array(rows, pa.int32())
        columns = (
            self._several(at.key, rows, taken),
            self._several(at.value, rows, taken),
            self._several_headers(at.headers, rows, taken),
            self._several_instants(at.timestamp, rows, taken),
            self._several(at.topic, rows, taken),
            self._several(at.partition, rows, taken),
            self._several(at.offset, rows, taken),
            self._several(at.file, rows, taken),
            map(self._columns, rows),
        )
        return [
            Record(
                key=_bytes(key),
                value=_bytes(value),
                headers=headers,
                timestamp=timestamp,
                topic=topic,
                partition=partition,
                offset=offset,
                file=file,
                columns=others,
            )
            for key, value, headers, timestamp, topic, partition, offset, file, others in zip(
                *columns, strict=True
            )
        ]

    @cached_property
    def spans(self) -> list[Span]:
        """The offset ranges of this batch, one for each partition of a topic."""
        at = self._layout
        if at.topic is None or at.partition is None or at.offset is None or not len(self.batch):
            return []
        topic, partition = self.batch.column(at.topic), self.batch.column(at.partition)
        offset = self.batch.column(at.offset)
        if _all_equal(partition) and _all_equal(topic):
            ends = pc.min_max(offset).as_py()
            if ends["min"] is None:
                return []
            return [_span(topic[0].as_py(), partition[0].as_py(), ends)]
        table = pa.table({"topic": topic, "partition": partition, "offset": offset})
        ranges = table.group_by(["topic", "partition"]).aggregate(
            [("offset", "min"), ("offset", "max")]
        )
        return [
            _span(
                row["topic"], row["partition"], {"min": row["offset_min"], "max": row["offset_max"]}
            )
            for row in ranges.to_pylist()
            if row["offset_min"] is not None
        ]

    def _get(self, column: int | None, row: int) -> Any:
        return None if column is None else python(self._arrays[column][row])

    def _headers(self, column: int | None, row: int) -> tuple[Header, ...]:
        found = None if column is None else self._arrays[column][row].values
        if found is None:
            return ()
        # By column: a third of what one dict for each header costs.
        return tuple(zip(found.field(0).to_pylist(), found.field(1).to_pylist(), strict=True))

    def _instant(self, column: int | None, row: int) -> datetime | None:
        if column is None:
            return None
        array = self._arrays[column]
        if array.type.unit == "us":
            # What Spark has; a sixth of what making a datetime with the column's zone costs.
            return _instant(array[row].value)
        try:
            return _utc(array[row].as_py())
        except OverflowError:
            return None

    def _several(self, column: int | None, rows: Sequence[int], taken: pa.Array) -> list[Any]:
        if column is None:
            return [None] * len(rows)
        try:
            values: list[Any] = self._arrays[column].take(taken).to_pylist()
        except (ValueError, OverflowError):
            return [self._get(column, row) for row in rows]
        return values

    def _several_headers(
        self, column: int | None, rows: Sequence[int], taken: pa.Array
    ) -> list[tuple[Header, ...]]:
        if column is None:
            return [()] * len(rows)
        try:
            lists = self._arrays[column].take(taken)
            found = lists.values
            flat = list(zip(found.field(0).to_pylist(), found.field(1).to_pylist(), strict=True))
        except (ValueError, OverflowError):
            return [self._headers(column, row) for row in rows]
        return [tuple(flat[first:last]) for first, last in pairwise(lists.offsets.to_pylist())]

    def _several_instants(
        self, column: int | None, rows: Sequence[int], taken: pa.Array
    ) -> list[datetime | None]:
        if column is None or self._arrays[column].type.unit != "us":
            return [self._instant(column, row) for row in rows]
        since = self._arrays[column].take(taken).cast(pa.int64())
        return list(map(_instant, since.to_pylist()))

    def _columns(self, row: int) -> str | None:
        if not self._layout.others:
            return None
        return as_json({name: self._get(column, row) for name, column in self._layout.others})


def as_json(values: dict[str, Any]) -> str:
    """The columns of a row as a JSON object; whatever they hold is written."""
    try:
        return json.dumps(values, default=_plain, ensure_ascii=False, allow_nan=False)
    except (ValueError, TypeError):
        # JSON has no NaN; the text is what Spark's own to_json writes. Its keys are text.
        return json.dumps(_written(values), default=_plain, ensure_ascii=False)


def _instant(since: int | None) -> datetime | None:
    """Microseconds since 1970 as a datetime."""
    try:
        return None if since is None else _EPOCH + timedelta(microseconds=since)
    except OverflowError:
        # A producer that sent microseconds for milliseconds: there is no such datetime.
        return None


def python(scalar: pa.Scalar) -> Any:
    """A value as Python, whatever it is: building a letter never raises (P17).

    Python has no date beyond the year 9999 and no text that is no UTF-8. The first
    becomes text, the second bytes.
    """
    try:
        return scalar.as_py()
    except (ValueError, OverflowError):
        return _taken_apart(scalar)


def _taken_apart(scalar: pa.Scalar) -> Any:
    kind = scalar.type
    if pa.types.is_struct(kind):
        return {field.name: python(scalar[place]) for place, field in enumerate(kind)}
    if pa.types.is_map(kind):
        return [[python(pair["key"]), python(pair["value"])] for pair in scalar.values]
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return [python(one) for one in scalar.values]
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return scalar.as_buffer().to_pybytes()
    if pa.types.is_timestamp(kind):
        scalar = scalar.cast(pa.timestamp(kind.unit))
    return scalar.cast(pa.string()).as_py()


def _written(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, "NaN")
    if isinstance(value, dict):
        return {_named(name): _written(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_written(one) for one in value]
    return value


def _named(name: Any) -> Any:
    name = _written(name)
    return name if name is None or isinstance(name, str | int | float) else _plain(name)


def _all_equal(column: pa.Array) -> bool:
    if column.null_count:
        return False
    # Compared with itself one row further: a fifth of what comparing with the first one costs.
    return bool(column.slice(1).equals(column.slice(0, len(column) - 1)))


def _span(topic: str, partition: int, ends: dict[str, int]) -> Span:
    return Span(topic=topic, partition=partition, first=ends["min"], last=ends["max"])


def _bytes(value: bytes | str | None) -> bytes | None:
    return value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value


def _utc(value: datetime | None) -> datetime | None:
    if value is None:
        return None
    return value.astimezone(UTC) if value.tzinfo else value.replace(tzinfo=UTC)


def _plain(value: object) -> str:
    if isinstance(value, bytes | bytearray):
        return base64.b64encode(value).decode()
    return str(value)
