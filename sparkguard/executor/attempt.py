"""The attempt: from an exception to an enacted outcome.

The order is always: classify, retry while the cause is transient and the task
timeout allows it, ask the handler once, do what it said.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, assert_never

from sparkguard.core.budget import Window
from sparkguard.core.classify import classify
from sparkguard.core.decide import decide, not_stored, stage_failed
from sparkguard.core.failure import Cause, Failure
from sparkguard.core.fingerprint import Described, describe
from sparkguard.core.outcome import Continue, DeadLetter, Fail, Outcome, Restart, RetryLater
from sparkguard.core.record import Record
from sparkguard.core.retry import TaskTimeout, backoff, hinted, should_retry
from sparkguard.core.route import route
from sparkguard.errors import SinkError
from sparkguard.events import RECORD_FAILED
from sparkguard.executor.plan import Step
from sparkguard.executor.tally import worth_a_line
from sparkguard.executor.work import Work
from sparkguard.formats.base import explained


@dataclass(frozen=True, slots=True)
class Recovered:
    """A repeated attempt succeeded with this value."""

    value: Any


@dataclass(frozen=True, slots=True)
class Exhausted:
    """No attempt succeeded: the exception of the last one, and when the first one failed."""

    error: BaseException
    attempts: int
    first: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """One exception, and how to try again.

    Attributes:
        again: calls the stage's function once more for the same value; None forbids it.
        progressed: a record succeeded since the last trouble of this stage.
        attempts: so often it was tried before.
        facts: further facts of the failure, by field.
        budgeted: it uses up the stage's budget.
    """

    error: BaseException
    again: Callable[[], Any] | None = None
    progressed: bool = True
    attempts: int = 1
    facts: Mapping[str, Any] = field(default_factory=dict)
    budgeted: bool = True


@dataclass(frozen=True, slots=True)
class Aside:
    """A failure that is described, and whose record is read and decided about with others.

    Attributes:
        row: of its record in the batch.
    """

    row: int
    described: Described
    failed_at: datetime


class Attempt:
    """The failing path of one step in one task."""

    def __init__(self, work: Work, step: Step) -> None:
        self._work = work
        self._step = step
        self._goes_on = step.policy.goes_on
        self._timeout = TaskTimeout(step.policy.task_timeout)
        self._window = Window(step.policy.budget) if step.policy.budget else None
        self._let_go: dict[type, Failure] = {}

    def state(self) -> tuple[TaskTimeout, Window | None]:
        """Its clock and its window: for another process to go on with."""
        return self._timeout, self._window

    def restore(self, state: tuple[TaskTimeout, Window | None]) -> None:
        """Go on from a `state`."""
        self._timeout, self._window = state

    def entered(self, count: int) -> None:
        """Tell the budget how many records are about to be tried."""
        self._work.tally.add(self._step.name, "entered", count)
        if self._window is not None:
            self._window.add(count, 0)

    def progressed(self) -> None:
        """A record got through: the task timeout begins anew at the next failure (P8)."""
        self._timeout.progress()

    def failed(
        self, trouble: Trouble, read: Callable[[], Record], path: str = ""
    ) -> Recovered | str:
        """Retry, decide and enact; what was recovered, or the fact under which it left.

        Args:
            read: reads the record that failed.
            path: the element of the record, in partial stages.

        Raises:
            StageFailedError: the outcome was fail or restart, or the budget is used up.
            StoppedError: the query is being stopped.
        """
        if trouble.progressed:
            self._timeout.progress()
        tried = self.retried(trouble.error, trouble.again)
        if isinstance(tried, Recovered):
            return tried
        step, task = self._step, self._work.task
        record, error, now = read(), tried.error, task.now()
        if trouble.again is not None:
            error = explained(step.format, record.value, error)
        described = describe(error, redact=step.policy.redact)
        failure = self._failure(error, described, record, first=tried.first, last=task.date())
        cause = classify(error, step.policy.classify)
        return self._enact(
            replace(
                failure,
                cause=cause,
                attempts=max(tried.attempts, trouble.attempts),
                timed_out=cause is Cause.TRANSIENT and self._timeout.expired(now),
                path=path,
                **trouble.facts,
            ),
            budgeted=trouble.budgeted,
        )

    def only_counted(self, error: BaseException) -> bool:
        """Count one more of what is let go each time, unless it is to be logged (1st, 10th, 100th).

        Without this a repeated event costs three times as much as one that is applied.
        """
        known = self._let_go.get(type(error))
        if known is None or not self._work.tally.failed_again(known):
            return False
        self._work.tally.add(self._step.name, "failed_attempts")
        return True

    def is_poison(self, error: BaseException) -> bool:
        """Whether the exception is the fault of what the stage was given."""
        return classify(error, self._step.policy.classify) is Cause.POISON

    def retried(
        self, error: BaseException, again: Callable[[], Any] | None
    ) -> Recovered | Exhausted:
        """Try again while the cause is transient and the task timeout allows it.

        Raises:
            StoppedError: the query is being stopped.
        """
        step, task = self._step, self._work.task
        attempts, first = 1, task.date()
        while True:
            self._work.tally.add(step.name, "failed_attempts")
            cause = classify(error, step.policy.classify)
            self._timeout.failed(task.now())
            # A second attempt of the task tries a record once, or Spark's retries multiply ours.
            if again is None or task.attempt > 0:
                break
            if not should_retry(cause, attempts, step.policy.retry, self._timeout, task.now()):
                break
            self._wait(error, attempts)
            self._work.tally.add(step.name, "retries")
            attempts += 1
            try:
                value = again()
            except BaseException as raised:  # whatever user code raises is a failure (P11)
                error = raised
            else:
                self._timeout.progress()
                return Recovered(value)
        return Exhausted(error, attempts, first)

    def give_up(self, error: BaseException, record: Record, reason: str) -> None:
        """Fail the stage at a record.

        Raises:
            StageFailedError: always.
        """
        now = self._work.task.date()
        described = describe(error, redact=self._step.policy.redact)
        failure = self._failure(error, described, record, first=now, last=now)
        raise stage_failed(failure, "fail", reason) from error

    def aside(
        self, error: BaseException, value: Any, row: int, *, progressed: bool
    ) -> Aside | None:
        """Put a failure aside, which `settled` decides about; None if it cannot wait.

        It can where nothing is to be tried again and whoever decides lets the pass go on.
        """
        policy = self._step.policy
        if not self._goes_on or not self.is_poison(error):
            return None
        told = explained(self._step.format, value, error)
        if told is not error and not self.is_poison(told):
            return None
        if progressed:
            self._timeout.progress()
        self._timeout.failed(self._work.task.now())
        described = describe(told, redact=policy.redact)
        # One object may be raised for many records, and each time its traceback would grow.
        BaseException.with_traceback(error, None)
        return Aside(row, described, self._work.task.date())

    def settled(self, aside: Aside, record: Record) -> str:
        """Decide and enact; the fact under which the record left.

        Raises:
            StageFailedError: the budget is used up, or a sink does not take the letter.
        """
        self._work.tally.add(self._step.name, "failed_attempts")
        at = aside.failed_at
        return self._enact(self._failure(None, aside.described, record, first=at, last=at))

    def _wait(self, error: BaseException, attempts: int) -> None:
        wait = backoff(self._step.policy.retry, attempts, random.random)
        wait = max(wait, hinted(error) or 0.0)
        self._work.task.wait(self._timeout.clip(wait, self._work.task.now()))

    def _failure(
        self,
        error: BaseException | None,
        described: Described,
        record: Record,
        *,
        first: datetime,
        last: datetime,
    ) -> Failure:
        """The failure of a first attempt, of a record that will fail again."""
        step, task, plan = self._step, self._work.task, self._work.plan
        return Failure(
            stage=step.name,
            category=step.category,
            cause=Cause.POISON,
            exception_types=described.types,
            message=described.message,
            trace=described.trace,
            fingerprint=described.fingerprint,
            first_failed_at=first,
            last_failed_at=last,
            record=record,
            app=plan.app,
            flow=plan.flow,
            query_name=task.query_name,
            query_id=task.query_id,
            batch_id=task.batch_id,
            payload="row" if step.kind == "produce" else "record",
            exception=error,
        )

    def _enact(self, failure: Failure, *, budgeted: bool = True) -> str:
        outcome = decide(failure, self._step.policy)
        self._log(failure, outcome)
        match outcome:
            case Continue():
                handler = type(route(failure, self._step.policy)) if not budgeted else None
                if handler and vars(handler).get("lets_go") is True:
                    self._let_go[type(failure.exception)] = failure
                failure.let_go()
                fact = "skipped"
            case DeadLetter(sink):
                failure.let_go()
                self._store(sink or self._step.policy.sink, failure)
                fact = "dead_lettered"
            case RetryLater(due, sink):
                if failure.payload != "record":
                    reason = "only a record can be sent again later, and this is a row"
                    raise stage_failed(failure, "fail", reason) from failure.exception
                failure.let_go()
                self._store(sink, failure, due)
                fact = "delayed"
            case Fail(reason):
                raise stage_failed(failure, "fail", reason) from failure.exception
            case Restart(reason):
                raise stage_failed(failure, "restart", reason) from failure.exception
            case _:
                assert_never(outcome)
        if budgeted:
            self._spend(failure)
        return fact

    def _store(self, sink: str, failure: Failure, due: datetime | None = None) -> None:
        try:
            self._work.delivery.write(sink, failure, due)
        except SinkError as error:
            raise not_stored(failure.app, failure.flow, error, failure) from error

    def _spend(self, failure: Failure) -> None:
        window, budget = self._window, self._step.policy.budget
        if window is None or budget is None:
            return
        window.add(0, 1)
        if window.exceeded():
            raise stage_failed(failure, budget.then, window.sentence(failure.stage))

    def _log(self, failure: Failure, outcome: Outcome) -> None:
        seen = self._work.tally.failed(failure)
        if worth_a_line(seen):
            where = failure.record.coordinates
            line = (
                f"{RECORD_FAILED} flow={failure.flow} stage={failure.stage} "
                f"cause={failure.cause} outcome={type(outcome).__name__} at={where} "
                f"exception={failure.exception_type} fingerprint={failure.fingerprint} seen={seen}"
            )
            sys.stderr.write(line + "\n")
