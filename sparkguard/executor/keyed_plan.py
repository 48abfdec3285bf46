"""A stateful stage as it travels to the workers, and how its events are packed on the way."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple

import pyarrow as pa

from sparkguard import pickling
from sparkguard.core.keyed import Keyed
from sparkguard.core.record import Record
from sparkguard.core.versions import Facts
from sparkguard.executor.encode import schema_of
from sparkguard.executor.plan import ORIGIN_COLUMN, Layout, Plan, Step
from sparkguard.executor.row_letters import row_record
from sparkguard.executor.rows import Convert, Read, UnreadableError, read_one
from sparkguard.executor.source import Source, as_json, python

KEY: Final = "key"
PACKED: Final = "packed"
EMITTED: Final = "emitted"

_RECORD: Final = ("key", "value", "headers", "topic", "partition", "offset", "timestamp")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedPlan:
    """A stateful stage with everything that its tasks need.

    Attributes:
        read, convert: how rows become plain values, and those the event's type.
        columns: the columns of `Facts`, of those that the stage names.
        kafka: the rows are Kafka records themselves.
    """

    plan: Plan
    keyed: Keyed
    read: Read
    convert: Convert | None
    columns: tuple[int | None, ...]
    kafka: bool = False

    @property
    def step(self) -> Step:
        """The stage with its settings."""
        return self.plan.steps[0]


class Event(NamedTuple):
    """One packed row.

    Attributes:
        row: its columns as plain values, or the exception of a row that Python cannot hold.
        origin: where it came from, as far as that travelled with it.
        facts: what it says of itself.
        place: the task that packed it, and its number there.
    """

    row: Any
    origin: dict[str, Any] | None
    facts: Facts
    place: tuple[int, int]

    @classmethod
    def unpacked(cls, packed: bytes) -> Event:
        """The event in bytes that a `Packer` made."""
        row, origin, facts, place = pickling.unpack(packed)
        return cls(row, origin, Facts(*facts), place)

    def order(self) -> tuple[Any, ...]:
        """What events of one key are ordered by, where no sequence says it."""
        known = self.origin or {}
        at, topic = known.get("timestamp"), known.get("topic")
        partition, offset = known.get("partition"), known.get("offset")
        stamp = at.timestamp() if isinstance(at, datetime) else 0.0
        return stamp, topic or "", partition or 0, offset or 0, self.place

    def record(self, *, kafka: bool) -> Record:
        """The record for a letter."""
        if kafka and self.origin is not None:
            return row_record("", self.origin, value=self.origin.get("value"))
        row = self.row
        if isinstance(row, Unreadable):
            text = row.columns
        else:
            text = as_json(row if isinstance(row, dict) else row.asDict(recursive=True))
        return row_record(text, self.origin)


class Unreadable(NamedTuple):
    """A row that Python cannot hold: why, and its columns as JSON."""

    said: str
    columns: str


class Packer:
    """Packs the rows of one task: whatever is in them, none fails here."""

    def __init__(self, keyed: KeyedPlan, task: int) -> None:
        self._keyed = keyed
        self._task = task
        self._rows = 0

    def batch(self, batch: pa.RecordBatch) -> list[bytes]:
        """Each row of a batch as bytes."""
        plan, size = self._keyed.plan, len(batch)
        shown = batch.select(list(range(plan.layout.rows)))
        rows = self._read(shown)
        facts = [
            [None] * size if place is None else batch.column(place).to_pylist()
            for place in self._keyed.columns
        ]
        places = [(self._task, self._rows + number) for number in range(size)]
        self._rows += size
        packed = zip(
            rows, self._origins(batch, rows), zip(*facts, strict=True), places, strict=True
        )
        return list(map(pickling.pack, packed))

    def _read(self, shown: pa.RecordBatch) -> list[Any]:
        try:
            return self._keyed.read(shown)
        except Exception:
            # Some row cannot be read. One by one it is known which.
            return [self._read_one(shown, row) for row in range(len(shown))]

    def _read_one(self, shown: pa.RecordBatch, row: int) -> Any:
        try:
            return read_one(self._keyed.read, shown, row)
        except UnreadableError as error:
            others = tuple((name, place) for place, name in enumerate(shown.schema.names))
            told = Source(shown, Layout(others=others)).record(row).columns
            return Unreadable(str(error), told or "{}")

    def _origins(self, batch: pa.RecordBatch, rows: list[Any]) -> Iterable[Any]:
        if self._keyed.kafka:
            known = [name for name in _RECORD if name in batch.schema.names]
            # The same objects as in the row: pickled once.
            return [
                None if isinstance(row, Unreadable) else {name: row[name] for name in known}
                for row in rows
            ]
        if ORIGIN_COLUMN in batch.schema.names:
            return map(python, batch.column(ORIGIN_COLUMN))
        return [None] * len(rows)


def pack(work: bytes, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Rows as their key and one binary value: Spark's way to a stateful function costs by cell."""
    from pyspark import TaskContext

    keyed: KeyedPlan = pickling.loads_on_worker(work)
    context = TaskContext.get()
    packer = Packer(keyed, context.partitionId() if context else 0)
    for batch in batches:
        key = batch.column(batch.schema.get_field_index(keyed.keyed.key))
        packed = pa.array(packer.batch(batch), pa.binary())
        yield pa.RecordBatch.from_arrays([key, packed], [KEY, PACKED])


def unpack(work: bytes, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What was emitted, as the columns of its type."""
    schema = schema_of(pickling.loads_on_worker(work))
    for batch in batches:
        parts = [
            pa.ipc.read_record_batch(pa.py_buffer(part), schema)
            for part in batch.column(0).to_pylist()
        ]
        yield from pa.Table.from_batches(parts, schema).combine_chunks().to_batches()
