"""Budget: how many records a stage may fail before it stops (P5).

A ratio over a sliding window, as the threshold of Beam's error handler and the
windows of circuit breakers: one failure of one record is 100 % and says nothing.
"""

from __future__ import annotations

from collections import deque

from sparkguard.core.policy import Budget


class Window:
    """The latest records of one stage: in a worker's task, or over batches on the driver.

    It holds at least `budget.window` records once it has seen as many, and drops
    old batches as soon as the rest is enough. Memory: one pair for each `add`,
    at most `budget.window` of them.
    """

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.entered = 0
        self.failed = 0
        self._parts: deque[tuple[int, int]] = deque()

    def add(self, entered: int, failed: int) -> None:
        """`entered` more records entered the stage, of which `failed` failed."""
        if not entered and not failed:
            return
        self._parts.append((entered, failed))
        self.entered += entered
        self.failed += failed
        while self.entered - self._parts[0][0] >= max(self.budget.window, 1):
            gone_in, gone_failed = self._parts.popleft()
            self.entered -= gone_in
            self.failed -= gone_failed

    def exceeded(self) -> bool:
        """Whether more than `max_ratio` failed.

        Before a whole window has been seen: whether as many failed as would exceed
        the budget if every further record of the window went well.
        """
        # Divided, not multiplied: 29 of 100 are not more than 0.29, but more than 0.29 * 100.
        judged_on = max(self.entered, self.budget.window, 1)
        return self.budget.max_ratio < 1 and self.failed / judged_on > self.budget.max_ratio

    def sentence(self, stage: str) -> str:
        """What happened, for people."""
        ratio = self.failed / max(self.entered, 1)
        return (
            f"Stage {stage!r} failed {self.failed:,} of its last {self.entered:,} records "
            f"({ratio:.2%}); its budget is {self.budget.max_ratio:.4g} of {self.budget.window:,}."
        )
