"""What Spark's checkpoint of a query tells: which batches are committed, and how big they were.

The files are Spark's own: ``offsets/<n>`` has a version line, a line of metadata
and a line for each source, ``-`` where it had nothing yet; ``commits/<n>`` exists
once batch n is done; ``sources/<i>/0`` says where source i began.
"""

from __future__ import annotations

import json
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from sparkguard.driver.directory import Directory

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_VERSION = "v1"
_NOTHING = "-"

Offsets = dict[tuple[str, str], int]


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

    @property
    def stateful(self) -> bool:
        """Whether the query keeps state: then Spark commits no batch that was not evaluated."""
        return self._files.holds("state")

    def digest(self, batch_id: int) -> str | None:
        """What batch n was planned to read, as a digest; None where that is not written."""
        planned = self._files.read(f"offsets/{batch_id}")
        return None if planned is None else blake2b(planned, digest_size=16).hexdigest()

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
