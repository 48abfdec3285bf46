"""The clock of the supervisor, injected so that tests need not wait."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol


class Clock(Protocol):
    """Tells the time, and lets it pass."""

    def time(self) -> float:
        """Seconds since the epoch: for what another process will read."""
        ...

    def monotonic(self) -> float:
        """Seconds of a clock that nobody sets: for waits within this process."""
        ...

    def wait(self, until: Callable[[float], bool], seconds: float) -> bool:
        """Let `until` wait so many seconds; it may end earlier, and says whether it did."""
        ...


class SystemClock:
    """The machine's clock."""

    def time(self) -> float:
        """Seconds since the epoch."""
        return time.time()

    def monotonic(self) -> float:
        """Seconds since some moment in the past."""
        return time.monotonic()

    def wait(self, until: Callable[[float], bool], seconds: float) -> bool:
        """Wait in `until`, which gets the seconds."""
        return until(seconds)
