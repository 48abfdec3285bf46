"""The batch: a user's foreachBatch function, guarded.

Tried again while its trouble is transient and the task timeout allows it, then
routed like every failure. The accounts are stored before the function returns,
so before Spark commits the batch. Nothing but an ordinary exception leaves it:
any other would hang the query for ever.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, assert_never

from sparkguard.core.decide import decide, stage_failed
from sparkguard.core.failure import Category, Cause, Failure
from sparkguard.core.fingerprint import describe
from sparkguard.core.outcome import Continue, DeadLetter, Fail, Restart
from sparkguard.core.policy import Policy
from sparkguard.core.retry import TaskTimeout, backoff, hinted, should_retry
from sparkguard.driver import trouble
from sparkguard.driver.clock import Clock, SystemClock
from sparkguard.driver.rows import write_letters
from sparkguard.driver.settle import Settler
from sparkguard.driver.stop import Stop, StoppedBatchError
from sparkguard.driver.swallowed import Jobs
from sparkguard.driver.trouble import Trouble
from sparkguard.events import BATCH_FAILED, RETRY_SCHEDULED, log
from sparkguard.executor.plan import ORIGIN_COLUMN
from sparkguard.executor.task import TRY
from sparkguard.sinks.base import Sink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchStage:
    """A foreach_batch stage bound to its settings."""

    app: str
    name: str
    category: Category
    policy: Policy
    function: Callable[[Any, int], Any]
    sinks: dict[str, Sink]


@dataclass(slots=True, kw_only=True)
class _Tries:
    """What one batch has been through."""

    batch: Any
    batch_id: int
    query_id: str | None
    failed: int = 0
    first: datetime = field(default_factory=lambda: datetime.now(UTC))


class BatchFunction:
    """What Spark's foreachBatch is given."""

    def __init__(
        self, stage: BatchStage, settler: Settler, stop: Stop, *, clock: Clock | None = None
    ) -> None:
        self._stage = stage
        self._settler = settler
        self._stop = stop
        self._clock = clock or SystemClock()
        self.__name__ = stage.name

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Run one micro-batch; returns only when it may be committed."""
        query_id = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        tries = _Tries(batch=batch, batch_id=batch_id, query_id=query_id)
        try:
            self._stop.gate(batch, query_id)
            jobs = Jobs(batch.sparkSession.sparkContext)
            self._run(tries)
            swallowed = jobs.failed(self._settler.settle(query_id, batch_id))
            if swallowed is not None:
                # The function caught what was not its own: the flow's records are nowhere (P1).
                raise swallowed
        except Exception:
            raise
        except BaseException as error:
            # Py4J passes on nothing but an Exception, and the query would hang (P11).
            tries.failed += 1
            failure = self._failure(error, tries, Cause.FATAL)
            raise stage_failed(failure, "fail", "it is no ordinary exception") from error

    def _run(self, tries: _Tries) -> None:
        policy = self._stage.policy
        timeout = TaskTimeout(policy.task_timeout)
        while True:
            error = self._try(tries)
            if error is None:
                self._passed(tries)
                return
            met = self._met(error, tries)
            failure = self._failure(error, tries, met.cause)
            timeout.failed(self._clock.monotonic())
            now = self._clock.monotonic()
            if not should_retry(met.cause, tries.failed, policy.retry, timeout, now):
                failure = replace(failure, timed_out=timeout.expired(now))
                self._enact(failure, tries.batch)
                return
            if self._wait(failure, timeout, tries):
                self._stop.gate(tries.batch, tries.query_id)
                raise stage_failed(failure, "stop", "the query is being stopped") from error

    def _try(self, tries: _Tries) -> BaseException | None:
        batch = tries.batch
        shown = batch.drop(ORIGIN_COLUMN) if ORIGIN_COLUMN in batch.columns else batch
        context = batch.sparkSession.sparkContext
        context.setLocalProperty(TRY, str(tries.failed))
        try:
            self._stage.function(shown, tries.batch_id)
        except BaseException as error:  # whatever user code raises is a failure (P11)
            tries.failed += 1
            if tries.failed == 1:
                tries.first = datetime.now(UTC)
            return error
        return None

    def _met(self, error: BaseException, tries: _Tries) -> Trouble:
        """What the exception means, if it is a failure of this stage.

        Raises:
            StoppedBatchError: the query is being stopped, whatever came out of it.
            StageFailedError: a flow's stage has failed and was decided about.
        """
        met = trouble.read(error, self._stage.policy.classify)
        ended = self._stop.ended(tries.query_id)
        if ended or (ended is None and met.stopped and met.decided is None):
            # No failure: no retry, no letter (P12).
            raise StoppedBatchError(error) from None
        if met.decided is error:
            raise error
        if met.decided is not None:
            raise met.decided from error
        # Java was interrupted, and not to stop the query: a client's timeout.
        return replace(met, cause=Cause.TRANSIENT) if met.stopped else met

    def _passed(self, tries: _Tries) -> None:
        if tries.failed:
            self._settler.passed(self._counted(tries))
        elif self._stage.policy.whole_batch is not None:
            self._settler.clean(self._stage.name, tries.query_id, tries.batch_id)

    def _wait(self, failure: Failure, timeout: TaskTimeout, tries: _Tries) -> bool:
        """Wait before the next try; whether the query is about to be stopped instead."""
        error = failure.exception
        hint = (hinted(error) if error else None) or 0.0
        wait = max(backoff(self._stage.policy.retry, tries.failed, random.random), hint)
        wait = timeout.clip(wait, self._clock.monotonic())
        log(
            RETRY_SCHEDULED,
            stage=self._stage.name,
            batch_id=tries.batch_id,
            attempt=tries.failed,
            wait_seconds=round(wait, 3),
            exception=failure.exception_type,
        )
        return self._stop.pause(tries.batch, wait)

    def _counted(self, tries: _Tries) -> Failure:
        stage = self._stage
        return Failure(
            stage=stage.name,
            category=stage.category,
            cause=Cause.TRANSIENT,
            exception_types=(),
            attempts=tries.failed,
            app=stage.app,
            query_id=tries.query_id,
            batch_id=tries.batch_id,
            payload="row",
        )

    def _failure(self, error: BaseException, tries: _Tries, cause: Cause) -> Failure:
        described = describe(error, redact=self._stage.policy.redact)
        return replace(
            self._counted(tries),
            cause=cause,
            exception_types=described.types,
            message=described.message,
            trace=described.trace,
            fingerprint=described.fingerprint,
            first_failed_at=tries.first,
            last_failed_at=datetime.now(UTC),
            exception=error,
        )

    def _enact(self, failure: Failure, batch: DataFrame) -> None:
        outcome = decide(failure, self._stage.policy)
        log(
            BATCH_FAILED,
            stage=failure.stage,
            batch_id=failure.batch_id,
            cause=failure.cause.value,
            outcome=type(outcome).__name__,
            exception=failure.exception_type,
        )
        if isinstance(outcome, Continue | DeadLetter) and self._stage.policy.whole_batch is None:
            reason = "a whole batch leaves only where the settings say 'whole_batch'"
            raise stage_failed(failure, "fail", reason) from failure.exception
        match outcome:
            case Continue():
                self._settler.left(failure, "skipped", batch.count())
            case DeadLetter(sink):
                name = sink or self._stage.policy.sink
                stored = write_letters(batch, failure, name, self._stage.sinks)
                self._settler.left(failure, "dead_lettered", stored)
            case Fail(reason):
                raise stage_failed(failure, "fail", reason) from failure.exception
            case Restart(reason):
                raise stage_failed(failure, "restart", reason) from failure.exception
            case _:
                assert_never(outcome)
