"""A letter as a row of a table, and back: the schema of letter files.

DuckDB, pandas and Spark read it without sparkguard, so every column is a plain type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from itertools import accumulate
from operator import attrgetter
from typing import Any, Final

import pyarrow as pa

from sparkguard.core.failure import Category, Cause, Failure
from sparkguard.core.instant import utc
from sparkguard.core.letter import Letter
from sparkguard.core.record import Header, Record
from sparkguard.core.text import utf8

_TIME = pa.timestamp("us", tz="UTC")
_HEADER = pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())])

LETTER_SCHEMA: Final = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("app", pa.string()),
        pa.field("flow", pa.string()),
        pa.field("query_name", pa.string()),
        pa.field("query_id", pa.string()),
        pa.field("batch_id", pa.int64()),
        pa.field("stage", pa.string()),
        pa.field("category", pa.string()),
        pa.field("cause", pa.string()),
        pa.field("attempts", pa.int64()),
        pa.field("timed_out", pa.bool_()),
        pa.field("first_failed_at", _TIME),
        pa.field("last_failed_at", _TIME),
        pa.field("exception_type", pa.string()),
        pa.field("exception_types", pa.list_(pa.string())),
        pa.field("message", pa.string()),
        pa.field("trace", pa.string()),
        pa.field("fingerprint", pa.string()),
        pa.field("path", pa.string()),
        pa.field("payload", pa.string()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("file", pa.string()),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", pa.list_(_HEADER)),
        pa.field("timestamp", _TIME),
        pa.field("columns", pa.string()),
        pa.field("replays", pa.int64()),
        pa.field("version", pa.string()),
        pa.field("overflow", pa.string()),
        pa.field("due", _TIME),
        pa.field("state_key", pa.string()),
        pa.field("state_version", pa.int64()),
        pa.field("state", pa.string()),
    ]
)
"""The columns of a letter file; later versions add columns, they rename and remove none."""

_OF_LETTER = ("id", "replays", "version", "overflow", "due")
_OF_RECORD = ("key", "value", "timestamp", "topic", "partition", "offset", "file", "columns")
_OF_FAILURE = tuple(
    name for name in LETTER_SCHEMA.names if name not in {*_OF_LETTER, *_OF_RECORD, "headers"}
)


def letter_row(letter: Letter) -> dict[str, Any]:
    """The row of a letter, by column of `LETTER_SCHEMA`; text becomes valid UTF-8."""
    row = {name: getattr(letter, name) for name in _OF_LETTER}
    row |= {name: getattr(letter.failure, name) for name in _OF_FAILURE}
    row |= {name: getattr(letter.record, name) for name in _OF_RECORD}
    headers = [{"key": utf8(name), "value": value} for name, value in letter.record.headers]
    return {**{name: _plain(value) for name, value in row.items()}, "headers": headers}


def _plain(value: Any) -> Any:
    match value:
        case str():
            return utf8(value)
        case tuple():
            return [utf8(text) for text in value]
        case datetime():
            return utc(value)
        case _:
            return value


def letter_table(letters: Sequence[Letter]) -> pa.Table:
    """The letters as a table of `LETTER_SCHEMA`; by column, which costs a third of what rows do."""
    try:
        return _by_column(letters)
    except (UnicodeEncodeError, OverflowError, pa.ArrowException):
        # Text that is no UTF-8 or a date out of range: rows look at each value.
        rows = [letter_row(letter) for letter in letters]
        return pa.Table.from_pylist(rows, schema=LETTER_SCHEMA)


def _by_column(letters: Sequence[Letter]) -> pa.Table:
    failures = [letter.failure for letter in letters]
    records = [failure.record for failure in failures]
    made = {"headers": _headers(records)}
    for names, things in ((_OF_LETTER, letters), (_OF_FAILURE, failures), (_OF_RECORD, records)):
        for name in names:
            values = list(map(attrgetter(name), things))
            made[name] = _array(values, LETTER_SCHEMA.field(name).type)
    return pa.Table.from_arrays([made[name] for name in LETTER_SCHEMA.names], schema=LETTER_SCHEMA)


def _array(values: list[Any], kind: pa.DataType) -> pa.Array:
    # Most facts are the same in all letters of a task; then counting is cheaper than converting.
    if values and values.count(values[0]) == len(values):
        return pa.repeat(pa.scalar(values[0], kind), len(values))
    return pa.array(values, kind)


def _headers(records: Sequence[Record]) -> pa.Array:
    ends = accumulate((len(record.headers) for record in records), initial=0)
    flat = [header for record in records for header in record.headers]
    names = pa.array([name for name, _ in flat], type=pa.string())
    contents = pa.array([content for _, content in flat], type=pa.binary())
    entries = pa.StructArray.from_arrays([names, contents], fields=list(_HEADER))
    return pa.ListArray.from_arrays(pa.array(list(ends), type=pa.int32()), entries)


def letter_from_row(row: Mapping[str, Any]) -> Letter:
    """The letter of a row that `letter_row` made, or any reader of the file.

    Raises:
        KeyError: the row is none of a letter: id, category or cause is missing.
        ValueError: category or cause is unknown to this version.
    """
    known = {"stage": "", "exception_types": (), **_given(row, _OF_FAILURE)}
    known |= {"category": Category(row["category"]), "cause": Cause(row["cause"])}
    record = Record(**_given(row, _OF_RECORD), headers=_read_headers(row.get("headers")))
    return Letter(failure=Failure(**known, record=record), **_given(row, _OF_LETTER))


def _given(row: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """The facts that a row has; what it lacks keeps the value of its absence."""
    found = {name: row.get(name) for name in names if name != "exception_type"}
    return {
        name: _READ[name](value) if name in _READ else value
        for name, value in found.items()
        if value is not None
    }


def _read_headers(found: Iterable[Any] | None) -> tuple[Header, ...]:
    # pandas gives an array, which has no truth value.
    pairs = [] if found is None else [(one["key"], one["value"]) for one in found]
    return tuple((name, None if value is None else bytes(value)) for name, value in pairs)


_READ: Final[Mapping[str, Callable[[Any], Any]]] = {
    # Spark gives a bytearray, pandas an array.
    "key": bytes,
    "value": bytes,
    "exception_types": tuple,
    "timed_out": bool,
    "timestamp": utc,
    "first_failed_at": utc,
    "last_failed_at": utc,
    "due": utc,
}
