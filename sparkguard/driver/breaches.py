"""The breaches: budgets that were found exceeded when their batch was committed already.

The supervisor looks here. A query without one learns of it from the next batch's tasks, which
look into the state: only what fails in a task becomes the query's own exception.
"""

from __future__ import annotations

import logging

from sparkguard.driver.state import State
from sparkguard.errors import StageFailedError
from sparkguard.events import BUDGET_EXCEEDED, log


class Breaches:
    """The latest breach of each query."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._found: dict[str, StageFailedError] = {}

    def put(self, query_id: str, run_id: str, breach: StageFailedError) -> None:
        """Remember that this run of a query must not go on."""
        self._found[run_id] = breach
        try:
            self._state.store_breach(query_id, {"run_id": run_id, "facts": breach.facts})
        except Exception as error:
            problem = f"not in the state, so only the supervisor stops the query: {error}"
            log(BUDGET_EXCEEDED, level=logging.ERROR, query_id=query_id, problem=problem)

    def take(self, run_id: str) -> StageFailedError | None:
        """The breach of a run, told once."""
        return self._found.pop(run_id, None)
