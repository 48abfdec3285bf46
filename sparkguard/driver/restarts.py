"""The restart limit of one query: outlives the process, in the state.

Two bounds: restarts since the last committed batch, which progress clears, and
restarts within an hour, which meet a query that flaps.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from sparkguard.core.policy import Retry
from sparkguard.core.retry import backoff
from sparkguard.driver.clock import Clock
from sparkguard.driver.state import State

_HOUR = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """What the settings allow.

    Attributes:
        max_restarts: since the last committed batch.
        max_per_hour: within any hour.
        wait: back-off before a start.
    """

    max_restarts: int = 5
    max_per_hour: int = 20
    wait: Retry = Retry(initial=1.0, maximum=60.0)


class Restarts:
    """How often one query was restarted; every change is stored before it counts."""

    def __init__(
        self,
        state: State,
        name: str,
        limit: Limit,
        clock: Clock,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._state = state
        self._document = f"restarts/{name}"
        self._limit = limit
        self._clock = clock
        self._draw = draw
        known = state.load(self._document) or {}
        self.since_commit = int(known.get("since_commit", 0))
        self._times = [float(at) for at in known.get("times", ())]

    def refusal(self) -> str | None:
        """Why there may be no further restart, or None."""
        if self.since_commit >= self._limit.max_restarts:
            return (
                f"it was restarted {self.since_commit} times since the last committed batch "
                f"(restart.max_restarts: {self._limit.max_restarts})"
            )
        recent = self._recent()
        if len(recent) >= self._limit.max_per_hour:
            return (
                f"it was restarted {len(recent)} times within an hour "
                f"(restart.max_per_hour: {self._limit.max_per_hour})"
            )
        return None

    def next(self) -> float:
        """Count one restart; the seconds to wait before it."""
        self.since_commit += 1
        self._times = [*self._recent(), self._clock.time()]
        self._store()
        # Half of the bound at least: a restart is no place for a wait of nothing.
        bound = backoff(self._limit.wait, self.since_commit, lambda: 1.0)
        return bound * (0.5 + self._draw() / 2)

    def progressed(self) -> None:
        """A batch was committed: the first bound starts anew."""
        if self.since_commit:
            self.since_commit = 0
            self._store()

    def _recent(self) -> list[float]:
        return [at for at in self._times if self._clock.time() - at < _HOUR]

    def _store(self) -> None:
        self._state.store(
            self._document, {"since_commit": self.since_commit, "times": self._times}
        )
