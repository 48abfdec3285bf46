"""What Spark's checkpoint of a query tells: which batches are committed, and how big they were.

The files are Spark's own: ``offsets/<n>`` has a version line, a line of metadata
and a line for each source, ``-`` where it had nothing yet; ``commits/<n>`` exists
once batch n is done; ``sources/<i>/0`` says where source i began.
"""

from __future__ import annotations

import json
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple

from sparkguard.driver.directory import Directory

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_VERSION = "v1"
_NOTHING = "-"

Offsets = dict[tuple[str, str], int]


class Range(NamedTuple):
    """Offsets of one partition, the last one not included."""

    topic: str
    partition: int
    start: int
    end: int


def checkpoint_of(batch: DataFrame) -> str | None:
    """The checkpoint of the query whose micro-batch this is; None outside a query."""
    frame: Any = getattr(batch, "_jdf", None)
    query_id = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
    if query_id is None or frame is None:
        return None
    jvm: Any = batch.sparkSession.sparkContext._jvm  # noqa: SLF001  # the batch knows its query by id
    active = frame.sparkSession().sharedState().activeStreamingQueries()
    query = active.get(jvm.java.util.UUID.fromString(query_id))
    return None if query is None else str(query.resolvedCheckpointRoot()).rstrip("/")


class Checkpoint:
    """A checkpoint directory, read only."""

    def __init__(self, path: str) -> None:
        self._files = Directory(path)

    def committed(self) -> list[int]:
        """The committed batches that the checkpoint still remembers, in order."""
        names = self._files.names("commits")
        return sorted(int(name) for name in names if name.isdigit())

    def reached(self) -> Offsets:
        """For each partition of Kafka the offset behind the last committed record.

        Where two sources read one partition, that of the slower one.
        """
        found: Offsets = {}
        for line in self._lines(max(self.committed(), default=-1)) or []:
            for place, offset in (_topics(line) or {}).items():
                found[place] = min(offset, found.get(place, offset))
        return found

    @property
    def stateful(self) -> bool:
        """Whether the query keeps state: then Spark commits no batch that was not evaluated."""
        return self._files.holds("state")

    def digest(self, batch_id: int) -> str | None:
        """What batch n was planned to read, as a digest; None where that is not written."""
        planned = self._files.read(f"offsets/{batch_id}")
        return None if planned is None else blake2b(planned, digest_size=16).hexdigest()

    @property
    def query_id(self) -> str | None:
        """The id of the query, the same after each restart; None where there is no checkpoint."""
        text = self._files.read("metadata")
        return None if text is None else str(json.loads(text)["id"])

    def ranges(self, batch_id: int) -> list[Range | None]:
        """What was read from Kafka up to the end of batch n, by source, topic and partition.

        A None stands for each source that is not Kafka.

        Raises:
            LookupError: batch n or the beginning of a source is not written here any more.
        """
        lines = self._lines(batch_id)
        if lines is None:
            raise LookupError(f"the offsets of batch {batch_id} cannot be read")
        found: list[Range | None] = []
        for source, line in enumerate(lines):
            last = _topics(line)
            if line == _NOTHING or last is None:
                found += [None] if last is None and line != _NOTHING else []
                continue
            first = self._first(source)
            if first is None:
                raise LookupError(f"where source {source} began is not written there")
            found += [
                Range(topic, int(partition), first.get((topic, partition), 0), end)
                for (topic, partition), end in last.items()
            ]
        return found

    def spans(self, batch_id: int) -> list[Range]:
        """What batch n alone read from Kafka; empty where that is not known."""
        try:
            read = [one for one in self.ranges(batch_id) if one is not None]
            before = self.ranges(batch_id - 1) if batch_id else []
        except LookupError:
            return []
        ends = {(one.topic, one.partition): one.end for one in before if one is not None}
        return [one._replace(start=ends.get((one.topic, one.partition), one.start)) for one in read]

    def records_in(self, batch_id: int) -> int | None:
        """How many records batch n read from Kafka, None where its offsets do not tell.

        0 for a batch that read nothing, whatever its sources are. Offsets that compaction
        or transactions have emptied are counted too: Kafka does not tell them apart.
        """
        end = self._lines(batch_id)
        start = self._lines(batch_id - 1) if batch_id else [_NOTHING] * len(end or ())
        if end is None or start is None or len(start) != len(end):
            return None
        total = 0
        for source, (before, after) in enumerate(zip(start, end, strict=True)):
            read = self._read(source, before, after)
            if read is None:
                return None
            total += read
        return total

    def _read(self, source: int, before: str, after: str) -> int | None:
        if before == after:
            return 0
        first = self._first(source) if before == _NOTHING else _topics(before)
        last = _topics(after)
        if first is None or last is None:
            return None
        # A partition that came later begins at 0, as Spark reads it.
        return sum(max(0, offset - first.get(place, 0)) for place, offset in last.items())

    def _lines(self, batch_id: int) -> list[str] | None:
        """One line a source; None where there is no such batch, or its format is a newer one."""
        text = self._files.read(f"offsets/{batch_id}")
        lines = [] if text is None else text.decode().splitlines()
        return lines[2:] if lines[:1] == [_VERSION] else None

    def _first(self, source: int) -> Offsets | None:
        text = self._files.read(f"sources/{source}/0")
        return _topics(text.decode().splitlines()[-1]) if text else None


def _topics(line: str) -> Offsets | None:
    """The offsets in a line of a Kafka source; None for another source's line."""
    try:
        document = json.loads(line)
        return {
            (topic, partition): int(offset)
            for topic, partitions in document.items()
            for partition, offset in partitions.items()
        }
    except (ValueError, AttributeError, TypeError):
        return None
