"""Retry: whether to try again, how long to wait, and when it is too late.

Pure: the clock's reading and the random number come in as arguments. Seconds throughout.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from sparkguard.core.classify import causes
from sparkguard.core.failure import Cause
from sparkguard.core.policy import Retry


def backoff(retry: Retry, attempt: int, random: Callable[[], float]) -> float:
    """The wait after the `attempt`-th try (from 1) has failed.

    Drawn from [0, min(maximum, initial × multiplier^(attempt-1))]: full jitter, so
    that partitions that failed together do not return together (as AWS describes it
    in "Exponential Backoff And Jitter").

    Args:
        random: gives a number in [0, 1).
    """
    if retry.initial <= 0 or retry.maximum <= 0:
        return 0.0
    try:
        ceiling = retry.initial * float(retry.multiplier) ** max(attempt - 1, 0)
    except OverflowError:
        ceiling = math.inf
    return min(ceiling, retry.maximum) * random()


@dataclass(slots=True)
class TaskTimeout:
    """The clock that bounds attempts and waits together, as ``task.timeout.ms`` of KIP-572.

    It starts at the first failure and progress clears it, so slow successes do not
    use it up. The bound is inclusive: a failure at exactly `seconds` is tolerated;
    with 0 seconds nothing is tried again. A wait is cut at the bound, so there is
    one attempt at it. An attempt under way is never interrupted.

    Attributes:
        seconds: from the first failure without progress in between.
    """

    seconds: float
    _since: float | None = field(default=None, init=False)

    def failed(self, now: float) -> None:
        """An attempt failed: starts the clock if it does not run."""
        if self._since is None:
            self._since = now

    def progress(self) -> None:
        """A record or batch got through: clears the clock."""
        self._since = None

    def expired(self, now: float) -> bool:
        """Whether the time is used up; never before a failure."""
        if self._since is None:
            return False
        return self.seconds <= 0 or now - self._since > self.seconds

    def clip(self, wait: float, now: float) -> float:
        """`wait`, cut so that it ends at the bound; never negative."""
        left = math.inf if self._since is None else self._since + self.seconds - now
        return max(0.0, min(wait, left))


def should_retry(  # noqa: PLR0917 - five facts, none of them optional
    cause: Cause, attempts: int, retry: Retry, timeout: TaskTimeout, now: float
) -> bool:
    """Whether to try again after `attempts` failed tries, the first included."""
    return (
        cause is Cause.TRANSIENT
        and (retry.max_attempts is None or attempts < retry.max_attempts)
        and not timeout.expired(now)
    )


def hinted(error: BaseException) -> float | None:
    """How many seconds the other side asks to wait (HTTP 429, 503), None where it does not.

    Read from an attribute ``retry_after``, else from the response's Retry-After
    header in seconds, of the exception or of one that it was raised from. Never raises.
    """
    try:
        found = (_hint(link) for link in causes(error))
        return next((seconds for seconds in found if seconds is not None), None)
    except Exception:
        # An exception class may do anything in its attributes; then there is no hint.
        return None


def _hint(error: BaseException) -> float | None:
    hint: Any = getattr(error, "retry_after", None)
    if hint is None:
        headers = getattr(getattr(error, "response", None), "headers", None)
        hint = headers.get("Retry-After") if headers is not None else None
    if isinstance(hint, bool) or not isinstance(hint, int | float | str):
        return None
    try:
        seconds = float(hint)
    except (ValueError, OverflowError):
        # A date: reading it would need a wall clock that both sides agree on.
        return None
    return seconds if math.isfinite(seconds) and seconds >= 0 else None
