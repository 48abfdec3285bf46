"""A clock for tests: its time moves on command, and waiting is such a command."""

from __future__ import annotations

from collections.abc import Callable


class ManualClock:
    """Stands in for the supervisor's clock; starts at a moment of your choice.

    `waited` has every wait that was asked for, in seconds.
    """

    def __init__(self, start: float = 1_800_000_000.0) -> None:
        self._now = start
        self.waited: list[float] = []

    def time(self) -> float:
        """Seconds since the epoch."""
        return self._now

    def monotonic(self) -> float:
        """The same seconds."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Let time pass; a negative number sets the clock back."""
        self._now += seconds

    def wait(self, until: Callable[[float], bool], seconds: float) -> bool:
        """Let the time pass at once, then ask `until` without waiting."""
        self.waited.append(seconds)
        self.advance(seconds)
        return until(0)
