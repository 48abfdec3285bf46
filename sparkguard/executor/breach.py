"""The breach: a query that was found over a budget after a commit fails in its next task (P5)."""

from __future__ import annotations

import json

from sparkguard import filesystem
from sparkguard.errors import StageFailedError
from sparkguard.executor.task import Task


def refuse(folder: str, task: Task) -> None:
    """Look for a breach of the task's query.

    Raises:
        StageFailedError: there is one of this run; a restarted query has another.
    """
    if task.query_id is None or task.run_id is None:
        return
    fs, path = filesystem.resolve(filesystem.join(folder, f"{task.query_id}.json"))
    found = filesystem.read(fs, path)
    if found is None:
        return
    breach = json.loads(found)
    if breach["run_id"] == task.run_id.partition("/")[0]:
        raise StageFailedError(breach["facts"]["sentence"], breach["facts"])
