"""Rows that failed behind a flow, as letters: a whole batch on its way to a sink."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

import pyarrow as pa

from sparkguard.core.failure import Failure
from sparkguard.core.record import Record
from sparkguard.executor.delivery import Delivery
from sparkguard.executor.source import python
from sparkguard.executor.task import Task
from sparkguard.sinks.base import Sink


def write(
    failure: Failure, sink: str, sinks: Mapping[str, Sink], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Store each row (JSON in the first column, its origin in the second) as a letter.

    Yields how many letters were stored, once the sink has acknowledged them.
    """
    delivery, stored = Delivery(failure.app, sinks, Task.current()), 0
    try:
        for batch in batches:
            rows, origins = batch.columns
            for row, origin in zip(rows.to_pylist(), map(python, origins), strict=True):
                delivery.write(sink, replace(failure, record=_record(row, origin)))
                stored += 1
        delivery.flush()
        yield pa.RecordBatch.from_arrays([pa.array([stored], pa.int64())], ["stored"])
    finally:
        delivery.close()


def _record(row: str, origin: dict[str, Any] | None) -> Record:
    known = origin or {}
    at = known.get("timestamp")
    headers = known.get("headers") or ()
    return Record(
        key=known.get("key"),
        value=row.encode(),
        headers=tuple((header["key"], header["value"]) for header in headers),
        file=known.get("file"),
        timestamp=at if isinstance(at, datetime) else None,
        topic=known.get("topic"),
        partition=known.get("partition"),
        offset=known.get("offset"),
    )
