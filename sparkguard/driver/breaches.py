"""The breaches: budgets that were found exceeded when their batch was committed already.

The supervisor looks here. A query without one learns of it from the next batch's tasks, which
look into the state: only what fails in a task becomes the query's own exception. They look there
for the note too that a worker of the query died, and are careful until a batch is committed.
"""

from __future__ import annotations

import logging

from sparkguard.driver.state import State
from sparkguard.errors import StageFailedError
from sparkguard.events import BUDGET_EXCEEDED, CARE_ENDED, log


class Breaches:
    """What the tasks of each query are told: its latest breach, or to be careful."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._found: dict[str, StageFailedError] = {}
        self._calm: set[str] = set()

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

    def careful(self, query_id: str) -> bool:
        """Ask the query's tasks for care; whether they were asked before.

        Raises:
            Exception: what the filesystem raised: nobody was asked.
        """
        self._calm.discard(query_id)
        if self._state.asks_for_care(query_id):
            return True
        self._state.store_breach(query_id, {"careful": True})
        return False

    def committed(self, query_id: str) -> None:
        """A batch was committed: care is over. Looks into the state at a query's first one only."""
        if query_id in self._calm:
            return
        try:
            if self._state.asks_for_care(query_id):
                self._state.drop_breach(query_id)
            self._calm.add(query_id)
        except Exception as error:
            # Care costs little; the next batch tries again.
            log(CARE_ENDED, level=logging.WARNING, query_id=query_id, problem=str(error))
