"""Work: the letters of one redrive, chunk by chunk; each is noted once it is acknowledged."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet as pq

from sparkguard.core.letter_row import letter_from_row
from sparkguard.core.replay import Place
from sparkguard.deadletters.journal import Entry, Journal, Run
from sparkguard.errors import LettersError, ProduceError
from sparkguard.redrive.fates import Rules
from sparkguard.redrive.sending import Pace, Parcel, Sender, Target, parcels
from sparkguard.redrive.through import Through
from sparkguard.sinks.base import Sink, SinkTask, Writer

CHUNK_LETTERS: Final = 5_000
"""So many letters at most go twice after a kill …"""

CHUNK_BYTES: Final = 16 << 20
"""… and so many bytes, one letter apart; about four times as many are in memory."""

_BATCH_BYTES: Final = 4 << 20


class Work:
    """The chunks of one redrive on their way."""

    def __init__(
        self,
        journal: Journal,
        run: Run,
        target: Target,
        rules: Rules,
        *,
        sinks: Mapping[str, Sink],
    ) -> None:
        self._journal = journal
        self._run = run
        self._target = target
        self._partitions = target.partitions(*([] if run.topic is None else [run.topic]))
        pace = Pace(rules.rate)
        self._sender = Sender(target, pace, keep_order=run.keep_order)
        self._lot = rules.parking_lot
        self._sinks = sinks
        self._writer: Writer | None = None

    def chunk(self, chunk: Chunk, noted: frozenset[int], stop: Callable[[], bool]) -> list[Entry]:
        """Send a chunk and note it; what was acknowledged is noted where the rest fails.

        Args:
            stop: asked between two letters; once it says so, only what is under way is waited for.
        """
        parked: list[Entry] = []
        known = sum(chunk.first <= row < chunk.first + chunk.count for row in noted)
        try:
            sent = self._sender.send(self._parcels(chunk, noted, parked), stop)
            if self._writer is not None:
                self._writer.flush()
        except BaseException as error:
            self._note(chunk, self._sender.entries, known)
            if isinstance(error, ProduceError):
                raise self._with_advice(error) from error
            raise
        entries = [*sent, *parked]
        self._note(chunk, entries, known)
        return entries

    def close(self) -> None:
        """Forget what was not flushed."""
        if self._writer is not None:
            self._writer.close()

    def _parcels(
        self, chunk: Chunk, noted: frozenset[int], parked: list[Entry]
    ) -> Iterator[Parcel]:
        """What is to be sent; what is to be parked goes to the lot, and is put down in `parked`."""
        for first, batch in chunk.batches:
            for parcel in parcels(batch, first, self._run.id, self._to):
                if parcel.row in noted:
                    continue
                if parcel.message is not None:
                    yield parcel
                else:
                    self._park(batch, parcel.row - first)
                    parked.append(Entry(parcel.id, parcel.row, "parked"))

    def _note(self, chunk: Chunk, entries: list[Entry], known: int) -> None:
        if entries:
            whole = len(entries) + known == chunk.count
            self._journal.append(self._run, chunk.first, chunk.count if whole else None, entries)

    def _to(self, key: bytes | None, origin: Place) -> tuple[str, int]:
        """Where a record goes: to its own partition if there are so many, else by its key."""
        topic, partition = self._run.topic or origin[0] or "", origin[1]
        count = self._target.place(topic, self._partitions)
        by_key = self._run.keep_order and key is not None
        own = partition is not None and partition < count and not by_key
        return topic, partition if own and partition is not None else -1

    def _park(self, batch: pa.RecordBatch, at: int) -> None:
        if self._writer is None:
            if self._lot is None:
                raise LettersError(
                    f"The redrive {self._run.id} has letters for a parking lot; name one."
                )
            task = SinkTask(app="redrive", name=self._lot, sinks=self._sinks)
            self._writer = self._sinks[self._lot].open(task)
        (row,) = batch.slice(at, 1).to_pylist()
        self._writer.write(letter_from_row(row))

    def _with_advice(self, error: ProduceError) -> ProduceError:
        told = (
            f"{error} What was acknowledged is noted; go on with: "
            f"sparkguard dlq redrive --resume {self._run.id}"
        )
        return ProduceError(told, topic=error.topic, code=error.code, retriable=error.retriable)


class Processed:
    """The chunks of one redrive through a flow: all of them are processed at once, then noted."""

    def __init__(self, journal: Journal, run: Run, through: Through) -> None:
        self._journal = journal
        self._run = run
        self._through = through
        self._done = False

    def chunk(self, chunk: Chunk, noted: frozenset[int], _stop: Callable[[], bool]) -> list[Entry]:
        """Note a chunk; before the first one everything is processed, unless some of it was."""
        if not self._done and not chunk.first and not noted:
            try:
                self._through.process(self._journal.place(self._run))
            except LettersError:
                # Nothing of it is noted, so the next try may as well be another redrive.
                self._journal.end(self._run, abandoned=True)
                raise
        self._done = True
        entries = [
            Entry(letter, row, "through", seen=seen)
            for first, batch in chunk.batches
            for row, (letter, seen) in enumerate(
                zip(batch["id"].to_pylist(), _seen(batch), strict=True), first
            )
        ]
        self._journal.append(self._run, chunk.first, chunk.count, entries)
        return entries

    def close(self) -> None:
        """Do nothing."""


def _seen(batch: pa.RecordBatch) -> list[datetime | None]:
    """When each letter had failed last, as `table.SEEN` has it."""
    times = ("last_failed_at", "first_failed_at", "timestamp")
    found: list[datetime | None] = pc.coalesce(*(batch[name] for name in times)).to_pylist()
    return found


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows that are noted together: batches, each with the number of its first row."""

    first: int
    batches: Sequence[tuple[int, pa.RecordBatch]]

    @property
    def count(self) -> int:
        """How many rows."""
        return sum(len(batch) for _, batch in self.batches)


def chunks(file: pq.ParquetFile, first: int, rate: float | None = None) -> Iterator[Chunk]:
    """The rows of the file from `first` on, by chunks; with a rate, of two seconds at most."""
    limit = CHUNK_LETTERS if rate is None else max(1, min(CHUNK_LETTERS, int(rate * 2)))
    found: list[tuple[int, pa.RecordBatch]] = []
    size = 0
    for at, batch in _batches(file, first, limit):
        if found and at - found[0][0] + len(batch) > limit:
            yield Chunk(found[0][0], found)
            found, size = [], 0
        found.append((at, batch))
        size += batch.nbytes
        if size >= CHUNK_BYTES:
            yield Chunk(found[0][0], found)
            found, size = [], 0
    if found:
        yield Chunk(found[0][0], found)


def _batches(file: pq.ParquetFile, first: int, limit: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Few rows at a time where rows are large; groups of rows before `first` are not read."""
    start = 0
    for number in range(file.num_row_groups):
        rows = file.metadata.row_group(number).num_rows
        start += rows
        if start <= first:
            continue
        # Equal values are stored once, so the group's own size says little.
        total = pc.sum(file.read_row_group(number, ["size"])["size"]).as_py() or 0
        size = max(1, min(limit, _BATCH_BYTES * rows // (total + rows)))
        at = start - rows
        for batch in file.iter_batches(batch_size=size, row_groups=[number]):
            kept = batch.slice(max(first - at, 0))
            at += len(batch)
            if len(kept):
                yield at - len(kept), kept
