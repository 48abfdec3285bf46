"""A stateful stage as it travels to the workers, and how its events are packed on the way."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from operator import itemgetter
from typing import Any, Final, NamedTuple

import msgspec
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

_BUNDLE: Final = 4_096
"""Bytes from which a row begins anew: Spark sends its workers thousands of rows at once."""

_HELD: Final = 8 * 2**20
"""Bytes of events that a task holds back, for others of their keys to come."""

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


class Event(msgspec.Struct, frozen=True):
    """One packed row; a struct because one is made for every event.

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

    def log(self) -> tuple[str, int]:
        """The partition that it comes from."""
        known = self.origin or {}
        return known.get("topic") or "", known.get("partition") or 0

    def at(self) -> tuple[int, tuple[int, int]]:
        """Its place in that."""
        return (self.origin or {}).get("offset") or 0, self.place

    def stamp(self) -> float:
        """Its time, in seconds since 1970."""
        at = (self.origin or {}).get("timestamp")
        return at.timestamp() if isinstance(at, datetime) else 0.0

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


def in_order(events: list[tuple[Event, bytes]]) -> list[tuple[Event, bytes]]:
    """Events of one key where no sequence says their order: by time, topic, partition and offset.

    Within a partition the offset decides alone, whatever producers say of the time: an event
    counts as no earlier than those before it. So it does not matter where a batch ends.
    """
    latest: dict[tuple[str, int], float] = {}
    keys = []
    for event, packed in sorted(events, key=lambda one: (one[0].log(), one[0].at())):
        log = event.log()
        latest[log] = stamp = max(event.stamp(), latest.get(log, event.stamp()))
        keys.append((stamp, log, event.at(), (event, packed)))
    keys.sort(key=itemgetter(0, 1, 2))
    return [one for *_, one in keys]


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
            [None] * size if place is None else _values(batch.column(place))
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
            aliases = dict(getattr(self._keyed.read, "aliases", ()))
            named = [(name, aliases.get(name, name)) for name in known]
            # The same objects as in the row: pickled once.
            return [
                {name: python(batch.column(name)[at]) for name in known}
                if isinstance(row, Unreadable)
                else {name: row[alias] for name, alias in named}
                for at, row in enumerate(rows)
            ]
        if ORIGIN_COLUMN in batch.schema.names:
            return map(python, batch.column(ORIGIN_COLUMN))
        return [None] * len(rows)


def _values(column: pa.Array) -> list[Any]:
    try:
        values: list[Any] = column.to_pylist()
    except Exception:
        # Text that is no UTF-8 comes as bytes.
        return list(map(python, column))
    return values


def pack(work: bytes, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Events of one key as that and one binary value.

    Spark's way to a stateful function costs by cell; so what comes near each other goes as one
    row, which takes a third of a microsecond an event where all keys differ.
    """
    from pyspark import TaskContext

    keyed: KeyedPlan = pickling.loads_on_worker(work)
    context = TaskContext.get()
    packer = Packer(keyed, context.partitionId() if context else 0)
    held: dict[Any, list[bytes]] = {}
    size, kind = 0, pa.binary()
    for batch in batches:
        column = batch.column(batch.schema.get_field_index(keyed.keyed.key))
        packed, kind = packer.batch(batch), column.type
        for key, one in zip(keys_of(column), packed, strict=True):
            found = held.get(key)
            if found is None:
                held[key] = [one]
            else:
                found.append(one)
        size += sum(map(len, packed))
        if size >= _HELD:
            yield _bundled(held, kind)
            held, size = {}, 0
    if held:
        yield _bundled(held, kind)


def keys_of(column: pa.Array) -> list[Any]:
    """The keys; None also for one that Python cannot hold."""
    keys = _values(column)
    if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
        return keys
    return [None if isinstance(key, bytes) else key for key in keys]


def _bundled(held: dict[Any, list[bytes]], kind: pa.DataType) -> pa.RecordBatch:
    keys, bundles = [], []
    for key, events in held.items():
        count = len(events)
        step = 1 if count == 1 else max(1, _BUNDLE * count // sum(map(len, events)))
        for at in range(0, count, step):
            keys.append(key)
            bundles.append(pickling.pack(events[at : at + step]))
    return pa.RecordBatch.from_arrays(
        [pa.array(keys, kind), pa.array(bundles, pa.binary())], [KEY, PACKED]
    )


def unpack(work: bytes, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What was emitted, as the columns of its type."""
    schema = schema_of(pickling.loads_on_worker(work))
    for batch in batches:
        parts = [
            pa.ipc.read_record_batch(pa.py_buffer(part), schema)
            for part in batch.column(0).to_pylist()
        ]
        yield from pa.Table.from_batches(parts, schema).combine_chunks().to_batches()
