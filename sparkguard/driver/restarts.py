"""The restart limit of one query: outlives the process, in the state.

Two bounds: restarts since the last committed batch, which progress clears, and
restarts within an hour, which meet a query that flaps.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from sparkguard.config.duration import seconds
from sparkguard.core.policy import Retry
from sparkguard.core.retry import backoff
from sparkguard.driver.clock import Clock
from sparkguard.driver.state import State
from sparkguard.errors import ConfigError, SparkguardError

if TYPE_CHECKING:
    from sparkguard.config.model import RestartSettings

_HOUR = 3600.0
_WAIT: Final = Retry(initial=1.0, maximum=60.0)


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
    wait: Retry = _WAIT

    @classmethod
    def of(cls, restart: RestartSettings) -> Limit:
        """The limit that the settings set."""
        backoff = restart.backoff
        wait = Retry(
            initial=seconds(backoff.initial),
            multiplier=backoff.multiplier,
            maximum=seconds(backoff.max),
        )
        return cls(max_restarts=restart.max_restarts, max_per_hour=restart.max_per_hour, wait=wait)


class Restarts:
    """How often one query was restarted; a restart is stored before it happens.

    Raises:
        SparkguardError: the state cannot be read.
    """

    def __init__(
        self,
        state: State,
        name: str,
        limit: Limit,
        clock: Clock,
        *,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._state = state
        self._document = f"restarts/{quote(name, safe='')}"
        self._limit = limit
        self._clock = clock
        self._draw = draw
        self.since_commit, self._times = self._known()
        self._stale = False

    def _known(self) -> tuple[int, list[float]]:
        try:
            known = self._state.load(self._document) or {}
            return int(known.get("since_commit", 0)), [float(at) for at in known.get("times", ())]
        except SparkguardError:
            raise
        except (AttributeError, TypeError, ValueError) as error:
            msg = (
                f"The state's document {self._document!r} at {self._state.path!r} is none that "
                "this version writes; move it away to go on without it."
            )
            raise ConfigError(msg) from error
        except Exception as error:
            msg = f"The state at {self._state.path!r} cannot be read: {error}."
            raise ConfigError(msg) from error

    @property
    def within_an_hour(self) -> int:
        """Restarts in the last hour, whatever was committed in between."""
        return len(self._recent())

    def refusal(self) -> str | None:
        """Why there may be no further restart, or None."""
        if self.since_commit >= self._limit.max_restarts:
            return (
                f"it was restarted {self.since_commit} times since the last committed batch "
                f"(restart.max_restarts: {self._limit.max_restarts})"
            )
        if self.within_an_hour >= self._limit.max_per_hour:
            return (
                f"it was restarted {self.within_an_hour} times within an hour "
                f"(restart.max_per_hour: {self._limit.max_per_hour})"
            )
        return None

    def next(self) -> float:
        """Count one restart; the seconds to wait before it.

        Raises:
            Exception: what the filesystem raised: the restart cannot be counted, so it may
                not happen.
        """
        times = [*self._recent(), self._clock.time()]
        self._store(self.since_commit + 1, times)
        # Half of the bound at least: a restart is no place for a wait of nothing.
        bound = backoff(self._limit.wait, self.since_commit, lambda: 1.0)
        return bound * (0.5 + self._draw() / 2)

    def progressed(self) -> None:
        """A batch was committed: the first bound starts anew."""
        if not self.since_commit and not self._stale:
            return
        self.since_commit = 0
        try:
            self._store(0, self._times)
        except Exception:
            # A query that works is not stopped for a note about it; the next batch tries again.
            self._stale = True

    def _recent(self) -> list[float]:
        # A clock that was set back must not make the last hour last for ever.
        now = self._clock.time()
        return [at for at in self._times if abs(now - at) < _HOUR]

    def _store(self, since_commit: int, times: list[float]) -> None:
        self._state.store(self._document, {"since_commit": since_commit, "times": times})
        self.since_commit, self._times, self._stale = since_commit, times, False
