"""The breach: a query that was found over a budget after a commit fails in its next task (P5).

Where a worker of the query died, the same note asks its tasks for care.
"""

from __future__ import annotations

import json
import sys

from sparkguard import filesystem
from sparkguard.errors import StageFailedError
from sparkguard.executor.task import Task


def look(folder: str, task: Task) -> bool:
    """Look for a breach of the task's query; whether its tasks are to be careful.

    Where the state cannot be read, the task goes on: a hiccup there must not stop a query.

    Raises:
        StageFailedError: there is one of this run; a restarted query has another.
    """
    if task.query_id is None or task.run_id is None:
        return False
    place = filesystem.join(folder, f"{task.query_id}.json")
    try:
        found = filesystem.read(*filesystem.resolve(place))
        told = json.loads(found) if found is not None else {}
        facts = told["facts"] if told.get("run_id") == task.run_id.partition("/")[0] else None
        careful = bool(told.get("careful"))
    except Exception as error:
        where = filesystem.without_password(place)
        sys.stderr.write(f"No look for an exceeded budget at {where!r}: {error!r}\n")
        return False
    if facts is not None:
        raise StageFailedError(str(facts.get("sentence")), facts)
    return careful
