"""A letter as a row of a table, and back: the schema of letter files.

DuckDB, pandas and Spark read it without sparkguard, so every column is a plain type.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import accumulate
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
    ]
)
"""The columns of a letter file; later versions add columns, they rename and remove none."""

_OF_LETTER = ("id", "replays", "version", "overflow")
_OF_RECORD = ("key", "value", "timestamp", "topic", "partition", "offset", "file", "columns")
_OF_FAILURE = tuple(
    name for name in LETTER_SCHEMA.names if name not in {*_OF_LETTER, *_OF_RECORD, "headers"}
)


def letter_row(letter: Letter) -> dict[str, Any]:
    """The row of a letter, by column of `LETTER_SCHEMA`; text becomes valid UTF-8."""
    failure, record = letter.failure, letter.record
    return {
        "id": letter.id,
        "app": utf8(failure.app),
        "flow": utf8(failure.flow),
        "query_name": _text(failure.query_name),
        "query_id": _text(failure.query_id),
        "batch_id": failure.batch_id,
        "stage": utf8(failure.stage),
        "category": failure.category.value,
        "cause": failure.cause.value,
        "attempts": failure.attempts,
        "timed_out": failure.timed_out,
        "first_failed_at": _utc(failure.first_failed_at),
        "last_failed_at": _utc(failure.last_failed_at),
        "exception_type": utf8(failure.exception_type),
        "exception_types": [utf8(name) for name in failure.exception_types],
        "message": utf8(failure.message),
        "trace": utf8(failure.trace),
        "fingerprint": utf8(failure.fingerprint),
        "path": utf8(failure.path),
        "payload": utf8(failure.payload),
        "topic": _text(record.topic),
        "partition": record.partition,
        "offset": record.offset,
        "file": _text(record.file),
        "key": record.key,
        "value": record.value,
        "headers": [{"key": utf8(name), "value": value} for name, value in record.headers],
        "timestamp": _utc(record.timestamp),
        "columns": _text(record.columns),
        "replays": letter.replays,
        "version": letter.version,
        "overflow": _text(letter.overflow),
    }


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
    values: dict[str, Any] = {
        name: [getattr(letter, name) for letter in letters] for name in _OF_LETTER
    }
    values |= {name: [getattr(failure, name) for failure in failures] for name in _OF_FAILURE}
    values |= {name: [getattr(record, name) for record in records] for name in _OF_RECORD}
    columns = [
        _headers(records)
        if column.name == "headers"
        else pa.array(values[column.name], type=column.type)
        for column in LETTER_SCHEMA
    ]
    return pa.Table.from_arrays(columns, schema=LETTER_SCHEMA)


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
    return Letter(
        id=row["id"],
        failure=_failure(row),
        replays=row.get("replays") or 0,
        version=row.get("version") or "",
        overflow=row.get("overflow"),
    )


def _failure(row: Mapping[str, Any]) -> Failure:
    return Failure(
        stage=row.get("stage") or "",
        category=Category(row["category"]),
        cause=Cause(row["cause"]),
        exception_types=tuple(_items(row.get("exception_types"))),
        message=row.get("message") or "",
        trace=row.get("trace") or "",
        fingerprint=row.get("fingerprint") or "",
        attempts=row.get("attempts") or 0,
        first_failed_at=_utc(row.get("first_failed_at")),
        last_failed_at=_utc(row.get("last_failed_at")),
        timed_out=bool(row.get("timed_out")),
        record=_record(row),
        app=row.get("app") or "",
        flow=row.get("flow") or "",
        query_name=row.get("query_name"),
        query_id=row.get("query_id"),
        batch_id=row.get("batch_id"),
        path=row.get("path") or "",
        payload=row.get("payload") or "record",
    )


def _record(row: Mapping[str, Any]) -> Record:
    return Record(
        key=_bytes(row.get("key")),
        value=_bytes(row.get("value")),
        headers=tuple(_header(header) for header in _items(row.get("headers"))),
        timestamp=_utc(row.get("timestamp")),
        topic=row.get("topic"),
        partition=row.get("partition"),
        offset=row.get("offset"),
        file=row.get("file"),
        columns=row.get("columns"),
    )


def _header(header: Any) -> Header:
    return header["key"], _bytes(header["value"])


def _items(found: Iterable[Any] | None) -> Iterable[Any]:
    # pandas gives an array, which has no truth value.
    return () if found is None else found


def _bytes(found: Any) -> bytes | None:
    # Spark gives a bytearray.
    return None if found is None else bytes(found)


def _text(text: str | None) -> str | None:
    return None if text is None else utf8(text)


def _utc(when: datetime | None) -> datetime | None:
    return None if when is None else utc(when)
