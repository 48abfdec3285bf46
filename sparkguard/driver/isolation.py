"""Isolation: a batch that one row poisons is halved until the bad rows stand alone.

k bad rows of n cost about 2 k log2(n/k) calls of the batch function, each a write of its own.
Only poison is looked for so: an outage is no row's fault, and neither is a bug.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass

from sparkguard.core.budget import Window
from sparkguard.core.decide import stage_failed
from sparkguard.core.failure import Cause, Failure
from sparkguard.driver.journal import Journal
from sparkguard.events import BUDGET_EXCEEDED, log


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a call over some rows ended, after so many failed tries."""

    failure: Failure | None = None
    failed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """Rows that left: dead-lettered or skipped, and the letter's identity if it is one."""

    fact: str
    rows: int
    letter: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Isolation:
    """The calls over one batch that was set aside; goes on where its journal stands.

    Attributes:
        call: writes the rows, with retries; raises where nothing is to be decided about.
        leave: lets rows leave that failed for good; raises where they may not.
        limit: of the calls in all, replays included.
        window: what failed in the batches before, where the stage has a budget.
    """

    journal: Journal
    call: Callable[[range], Ended]
    leave: Callable[[range, Failure], Left]
    limit: int
    window: Window | None = None

    def run(self) -> None:
        """Go on until every row is written or has left.

        Raises:
            StageFailedError: a handler said so, the bad rows were not found within the limit,
                or there are more of them than the budget allows.
        """
        while (rows := self.journal.next) is not None:
            self._meet(rows, self._called(rows))

    def _called(self, rows: range) -> Failure | None:
        ended = self.call(rows)
        progress = self.journal.progress
        progress.calls += 1
        progress.failed += ended.failed
        progress.retries += ended.failed - (1 if ended.failure else 0)
        return ended.failure

    def _meet(self, rows: range, failure: Failure | None) -> None:
        if failure is None:
            self.journal.written()
        elif failure.cause is not Cause.POISON or len(rows) == 1:
            if failure.cause is Cause.POISON:
                self._judge(failure, len(rows))
            left = self.leave(rows, failure)
            self.journal.left(left.fact, failure, left.letter)
        elif self.journal.progress.calls >= self.limit:
            reason = (
                f"the bad rows of the batch were not found in {self.limit:,} calls "
                "(isolate.max_calls); too many of them are bad"
            )
            raise stage_failed(failure, "fail", reason) from failure.exception
        else:
            self.journal.split()

    def judged(self, more: int = 0) -> Window | None:
        """The budget's window with this batch in it, and so many more rows that failed."""
        if self.window is None:
            return None
        after, progress = deepcopy(self.window), self.journal.progress
        after.add(self.journal.plan.rows, progress.dead_lettered + progress.skipped + more)
        return after

    def _judge(self, failure: Failure, rows: int) -> None:
        """Before a row leaves: too many are no bad rows, but an outage that nobody knew (P5)."""
        after = self.judged(rows)
        if after is None or not after.exceeded():
            return
        log(
            BUDGET_EXCEEDED,
            level=logging.ERROR,
            stage=failure.stage,
            batch_id=failure.batch_id,
            max_ratio=after.budget.max_ratio,
        )
        sentence = after.sentence(failure.stage)
        raise stage_failed(failure, after.budget.then, sentence) from failure.exception
