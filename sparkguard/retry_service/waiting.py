"""Waiting: records of a retry topic until they are due, as bundles in the state of a Spark query.

A bundle holds what one batch brought for one bucket and one slot, as Arrow bytes; so the state
and Spark's own Python, which takes rows one by one, see bundles and never a record. A slot is the
due time rounded up to the trigger's interval: one list of bundles and one timer each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import (
    ListState,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)
from pyspark.sql.types import BinaryType, StructField, StructType

MESSAGES: Final = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
    ]
)
"""The columns of a bundle: a message of Kafka as it was read."""

BUNDLED: Final = "bucket int, slot long, bundle binary"
"""What `bundled` gives, as Spark writes types."""

BUNDLE: Final = StructType([StructField("bundle", BinaryType(), nullable=False)])
"""What the state holds, and what leaves it."""

_KINDS: Final = (pa.int32(), pa.int64(), pa.binary())
_BUNDLE_BYTES: Final = 1 << 20


def bundled(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Messages with their ``bucket`` and ``slot``, as bundles with theirs."""
    for batch in batches:
        ordered = batch.take(_order(batch))
        places = zip(
            *(ordered.column(name).to_pylist() for name in ("bucket", "slot")), strict=True
        )
        messages = ordered.select(MESSAGES.names).cast(MESSAGES)
        at, rows = 0, []
        for (bucket, slot), same in groupby(places):
            count = sum(1 for _ in same)
            parts = _parts(messages.slice(at, count))
            rows += [(bucket, slot, part.serialize().to_pybytes()) for part in parts]
            at += count
        if rows:
            kinds = zip(zip(*rows, strict=True), _KINDS, strict=True)
            arrays = [pa.array(column, kind) for column, kind in kinds]
            yield pa.RecordBatch.from_arrays(arrays, ["bucket", "slot", "bundle"])


def messages_in(bundle: pa.Buffer) -> pa.RecordBatch:
    """The messages of a bundle, columns as in `MESSAGES`."""
    return pa.ipc.read_record_batch(bundle, MESSAGES)


def _order(batch: pa.RecordBatch) -> pa.Array:
    import pyarrow.compute as pc

    keys = [("bucket", "ascending"), ("slot", "ascending")]
    return pc.sort_indices(batch.select(["bucket", "slot"]), sort_keys=keys)


def _parts(messages: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The same messages in parts of bounded size, but for one that is larger alone."""
    half = len(messages) // 2
    if half and messages.nbytes > _BUNDLE_BYTES:
        yield from _parts(messages.slice(0, half))
        yield from _parts(messages.slice(half))
    else:
        yield messages


class Waiting(StatefulProcessor):
    """Holds the bundles of one bucket and slot until the slot is over; the key is (bucket, slot).

    Spark passes the arguments by name, so their names are its own.

    Args:
        limit: bytes of what waited that leave one partition of the state in one batch; weeks may
            be due after an outage, and Spark holds what leaves in memory.
    """

    def __init__(self, limit: int = 64 << 20) -> None:
        self._limit = limit

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Take the handle of this task's state."""
        self._handle = handle
        self._held: ListState = handle.getListState("held", BUNDLE)
        self._batch, self._left = 0, self._limit

    def handleInputRows(  # noqa: N802  # Spark's name
        self,
        key: Any,
        rows: Iterator[Row],
        timerValues: TimerValues,  # noqa: N803
    ) -> Iterator[Row]:
        """Pass on what is due already; keep the rest, with one timer for all of it."""
        slot, bundles = int(key[-1]), [(row.bundle,) for row in rows]
        if slot <= timerValues.getCurrentProcessingTimeInMs():
            yield from (Row(bundle=bundle) for (bundle,) in bundles)
        else:
            self._held.appendList(bundles)
            self._handle.registerTimer(slot)

    def handleExpiredTimer(  # noqa: N802
        self,
        key: Any,
        timerValues: TimerValues,  # noqa: N803
        expiredTimerInfo: Any,  # noqa: N803
    ) -> Iterator[Row]:
        """Pass on what waited for this slot, and forget it."""
        now = timerValues.getCurrentProcessingTimeInMs()
        if now != self._batch:
            self._batch, self._left = now, self._limit
        if self._left <= 0:
            self._handle.registerTimer(now + 1)
            return
        for (bundle,) in self._held.get():
            self._left -= len(bundle)
            yield Row(bundle=bytes(bundle))
        self._held.clear()

    def close(self) -> None:
        """Nothing is open."""
