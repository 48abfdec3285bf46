"""Rows that failed behind a flow, as letters: some of a batch, or all of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

import pyarrow as pa

from sparkguard.core.failure import Failure
from sparkguard.core.letter import letter_id
from sparkguard.core.record import Record
from sparkguard.executor.delivery import Delivery
from sparkguard.executor.source import python
from sparkguard.executor.task import Task
from sparkguard.sinks.base import Sink


def write(
    failure: Failure,
    sink: str,
    sinks: Mapping[str, Sink],
    batches: Iterable[pa.RecordBatch],
    *,
    seen: Sequence[str] = (),
) -> Iterator[pa.RecordBatch]:
    """Store each row (JSON in the first column, its origin in the second) as a letter.

    Yields how many letters were stored, once the sink has acknowledged them, and the last one's
    identity: its id before equal ones were numbered.

    Args:
        seen: identities of letters that count as equal ones before these.
    """
    delivery, stored, last = Delivery(failure.app, sinks, Task.current(), seen), 0, None
    try:
        for batch in batches:
            rows, origins = batch.columns
            for row, origin in zip(rows.to_pylist(), map(python, origins), strict=True):
                last = replace(failure, record=row_record(row, origin))
                delivery.write(sink, last)
                stored += 1
        delivery.flush()
        identity = None if last is None else letter_id(last)
        columns = [pa.array([stored], pa.int64()), pa.array([identity], pa.string())]
        yield pa.RecordBatch.from_arrays(columns, ["stored", "identity"])
    finally:
        delivery.close()


def row_record(row: str, origin: dict[str, Any] | None, *, value: bytes | None = None) -> Record:
    """The record of a row that failed: its columns as JSON, and where it came from.

    Args:
        value: of a row that is a record itself.
    """
    known = origin or {}
    at = known.get("timestamp")
    headers = known.get("headers") or ()
    return Record(
        key=known.get("key"),
        value=row.encode() if row else value,
        headers=tuple((header["key"], header["value"]) for header in headers),
        file=known.get("file"),
        timestamp=at if isinstance(at, datetime) else None,
        topic=known.get("topic"),
        partition=known.get("partition"),
        offset=known.get("offset"),
    )
