"""Sources: what the checkpoints say that queries have read and committed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sparkguard import filesystem
from sparkguard.driver.checkpoint import Checkpoint, Range
from sparkguard.errors import LettersError


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What one query has read.

    Attributes:
        path: of its checkpoint, as it may be shown.
        committed: its last committed batch.
        read: by batch what it read, those that the checkpoint still remembers; without those
            whose offsets do not tell.
        ranges: what it read in all; None where that is not known.
        spans: what each of those batches read.
        problem: why it is not known, half a sentence; empty where it is no fault.
    """

    path: str
    committed: int
    read: Mapping[int, int]
    ranges: tuple[Range, ...] | None
    spans: Mapping[int, Sequence[Range]]
    problem: str = ""

    @property
    def offsets(self) -> int:
        """How many offsets the ranges have."""
        return sum(max(0, one.end - one.start) for one in self.ranges or ())

    def late(self, accounted: Iterable[int]) -> int:
        """Records of committed batches without an account, later than the first one with one."""
        known = {*accounted}
        first = min(known, default=-1)
        return sum(
            records for batch, records in self.read.items() if batch > first and batch not in known
        )


def sources(checkpoints: Sequence[str]) -> dict[str, Source]:
    """What each checkpoint tells, by the id of its query.

    Raises:
        LettersError: there is no checkpoint, nothing is committed, or it cannot be read.
    """
    found = {}
    for path in checkpoints:
        shown = filesystem.without_password(path)
        try:
            query_id, source = _source(Checkpoint(path), shown)
        except (OSError, ValueError, KeyError) as error:
            raise LettersError(f"The checkpoint {shown} cannot be read: {error}.") from error
        found[query_id] = source
    return found


def _source(checkpoint: Checkpoint, shown: str) -> tuple[str, Source]:
    query_id, committed = checkpoint.query_id, checkpoint.committed()
    if query_id is None:
        raise LettersError(f"There is no checkpoint at {shown}.")
    if not committed:
        raise LettersError(f"No batch is committed in the checkpoint {shown}.")
    last, problem = committed[-1], ""
    ranges: tuple[Range, ...] | None = None
    try:
        known = checkpoint.ranges(last)
        kafka = tuple(one for one in known if one is not None)
        ranges = kafka if len(kafka) == len(known) else None
    except LookupError as error:
        problem = str(error.args[0])
    read = {batch: checkpoint.records_in(batch) for batch in committed}
    return query_id, Source(
        path=shown,
        committed=last,
        read={batch: records for batch, records in read.items() if records is not None},
        ranges=ranges,
        spans={batch: checkpoint.spans(batch) for batch in committed} if ranges else {},
        problem=problem,
    )
