"""What Spark's checkpoint of a query tells: which batches are committed, and how big they were.

The files are Spark's own: ``offsets/<n>`` has a version line, a line of metadata
and a line of JSON for each source; ``commits/<n>`` exists once batch n is done.
"""

from __future__ import annotations

import json

from sparkguard.driver.directory import Directory

Offsets = dict[tuple[int, str, str], int]


class Checkpoint:
    """A checkpoint directory, read only."""

    def __init__(self, path: str) -> None:
        self._files = Directory(path)

    def query_id(self) -> str | None:
        """The id that stays with the checkpoint through all restarts."""
        text = self._files.read("metadata")
        return None if text is None else str(json.loads(text)["id"])

    def committed(self) -> list[int]:
        """The committed batches that the checkpoint still remembers, in order."""
        names = self._files.names("commits")
        return sorted(int(name) for name in names if name.isdigit())

    def records_in(self, batch_id: int) -> int | None:
        """How many records batch n read from Kafka, from its offsets; None where they do not tell."""
        end = self._offsets(batch_id)
        start = self._offsets(batch_id - 1) if batch_id else self._initial(end)
        if end is None or start is None:
            return None
        return sum(offset - start.get(place, 0) for place, offset in end.items())

    def _offsets(self, batch_id: int) -> Offsets | None:
        text = self._files.read(f"offsets/{batch_id}")
        if text is None:
            return None
        lines = text.decode().splitlines()[2:]
        found: Offsets = {}
        for source, line in enumerate(lines):
            if line == "-":
                continue
            part = _topics(source, line)
            if part is None:
                return None
            found.update(part)
        return found

    def _initial(self, end: Offsets | None) -> Offsets | None:
        found: Offsets = {}
        for source in {source for source, _, _ in end or ()}:
            text = self._files.read(f"sources/{source}/0")
            part = _topics(source, text.decode().splitlines()[-1]) if text else None
            if part is None:
                return None
            found.update(part)
        return found


def _topics(source: int, line: str) -> Offsets | None:
    """The offsets in a line of a Kafka source; None for another source's line."""
    try:
        document = json.loads(line)
        return {
            (source, topic, partition): int(offset)
            for topic, partitions in document.items()
            for partition, offset in partitions.items()
        }
    except (ValueError, AttributeError, TypeError):
        return None
