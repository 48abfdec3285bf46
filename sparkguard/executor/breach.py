"""The breach: a query that was found over a budget after a commit fails in its next task (P5)."""

from __future__ import annotations

import json
import sys

from sparkguard import filesystem
from sparkguard.errors import StageFailedError
from sparkguard.executor.task import Task


def refuse(folder: str, task: Task) -> None:
    """Look for a breach of the task's query.

    Where the state cannot be read, the task goes on: a hiccup there must not stop a query.

    Raises:
        StageFailedError: there is one of this run; a restarted query has another.
    """
    if task.query_id is None or task.run_id is None:
        return
    place = filesystem.join(folder, f"{task.query_id}.json")
    try:
        found = filesystem.read(*filesystem.resolve(place))
        breach = json.loads(found) if found is not None else {}
        facts = breach["facts"] if breach.get("run_id") == task.run_id.partition("/")[0] else None
    except Exception as error:
        where = filesystem.without_password(place)
        sys.stderr.write(f"No look for an exceeded budget at {where!r}: {error!r}\n")
        return
    if facts is not None:
        raise StageFailedError(str(facts.get("sentence")), facts)
