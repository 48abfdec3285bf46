"""The folder into which a finished task writes its entry where Spark has no accumulators."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final
from uuid import uuid4

import msgspec

from sparkguard import filesystem
from sparkguard.core.ledger import Entry
from sparkguard.errors import StageFailedError
from sparkguard.executor.task import Task

UNBATCHED: Final = "batch"
"""Folder of the entries that belong to no query."""
DRIVEN: Final = ".driven"
"""Names end so if a batch function drives the query: the process of that function settles it."""


@dataclass(frozen=True, slots=True)
class EntryFolder:
    """Takes entries as an accumulator does: ``add`` is called once a task.

    Each query has a folder of its own below, so that a batch lists only what is its own.
    Each is a file of its own, whole or not there, at the price of one write a task. What a task
    has written stands even if the task fails behind the flow: the entry of its next attempt has
    the same key.

    Attributes:
        path: the folder, absolute.
        owner: names the guard that has sent the task out.
    """

    path: str
    owner: str

    def add(self, entries: Iterable[Entry]) -> None:
        """Write them; in a folder, their names sort by time."""
        fs, root = filesystem.resolve(self.path)
        for entry in entries:
            # A run with a try is one of a batch function.
            driven = DRIVEN if "/" in (entry.run_id or "") else ""
            name = f"{time.time_ns():020d}-{self.owner}-{uuid4().hex[:12]}{driven}.json"
            path = filesystem.join(root, entry.query_id or UNBATCHED, name)
            filesystem.write_atomically(fs, path, msgspec.json.encode(entry))

    def failed(self, flow: str, failure: StageFailedError) -> None:
        """Leave word that a flow has failed, for a batch function that swallows it."""
        task = Task.current()
        entry = Entry(
            flow=flow,
            query_id=task.query_id,
            run_id=task.run_id,
            batch_id=task.batch_id,
            stage_id=task.stage_id,
            partition=task.partition,
            failed=str(failure),
        )
        try:
            self.add([entry])
        except Exception as error:
            # The failure itself is what the query must hear of.
            sys.stderr.write(f"The state does not learn that flow {flow!r} failed: {error!r}\n")
