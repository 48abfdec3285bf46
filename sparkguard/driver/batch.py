"""The batch: a user's foreachBatch function, guarded.

Tried again while its trouble is transient and the task timeout allows it, then
routed like every failure. The accounts are stored before the function returns,
so before Spark commits the batch. Nothing but an ordinary exception leaves it:
any other would hang the query for ever.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, assert_never

from sparkguard.core.decide import decide, stage_failed
from sparkguard.core.failure import Category, Failure
from sparkguard.core.fingerprint import describe
from sparkguard.core.outcome import Continue, DeadLetter, Fail, Restart
from sparkguard.core.policy import Policy
from sparkguard.core.retry import TaskTimeout, backoff, hinted, should_retry
from sparkguard.driver import trouble
from sparkguard.driver.rows import write_letters
from sparkguard.driver.settle import Settler
from sparkguard.driver.stop import Stop
from sparkguard.events import BATCH_FAILED, RETRY_SCHEDULED, log
from sparkguard.executor.plan import ORIGIN_COLUMN
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


class BatchFunction:
    """What Spark's foreachBatch is given."""

    def __init__(self, stage: BatchStage, settler: Settler, stop: Stop) -> None:
        self._stage = stage
        self._settler = settler
        self._stop = stop
        self.__name__ = stage.name

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Run one micro-batch; returns only when it may be committed."""
        query_id = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        try:
            self._stop.gate(batch, query_id)
            self._run(batch, batch_id, query_id)
            self._settler.settle(query_id, batch_id)
        except Exception:
            raise
        except BaseException as error:
            # Py4J passes on nothing but an Exception, and the query would hang (P11).
            failure = self._failure(error, batch_id, query_id, 1, datetime.now(UTC))
            raise stage_failed(failure, "fail", "it is no ordinary exception") from error

    def _run(self, batch: DataFrame, batch_id: int, query_id: str | None) -> None:
        policy, timeout = self._stage.policy, TaskTimeout(self._stage.policy.task_timeout)
        shown = batch.drop(ORIGIN_COLUMN) if ORIGIN_COLUMN in batch.columns else batch
        attempts, first = 0, datetime.now(UTC)
        while True:
            attempts += 1
            try:
                self._stage.function(shown, batch_id)
            except BaseException as raised:  # whatever user code raises is a failure (P11)
                error = raised
            else:
                return
            if attempts == 1:
                first = datetime.now(UTC)
            met = trouble.read(error, policy.classify)
            if met.stopped:
                raise error  # the query is being stopped: no retry, no letter (P12)
            if met.decided is not None:
                raise met.decided from error
            timeout.failed(time.monotonic())
            if not should_retry(met.cause, attempts, policy.retry, timeout, time.monotonic()):
                break
            if self._wait(error, attempts, timeout, batch, batch_id):
                raise error  # the query is about to be stopped: the batch will come again
        failure = self._failure(error, batch_id, query_id, attempts, first, met)
        timed_out = timeout.expired(time.monotonic())
        self._enact(replace(failure, timed_out=timed_out), batch)

    def _wait(
        self,
        error: BaseException,
        attempts: int,
        timeout: TaskTimeout,
        batch: DataFrame,
        batch_id: int,
    ) -> bool:
        wait = max(backoff(self._stage.policy.retry, attempts, random.random), hinted(error) or 0.0)
        wait = timeout.clip(wait, time.monotonic())
        log(
            RETRY_SCHEDULED,
            stage=self._stage.name,
            batch_id=batch_id,
            attempt=attempts,
            wait_seconds=round(wait, 3),
            exception=type(error).__name__,
        )
        return self._stop.pause(batch, wait)

    def _failure(
        self,
        error: BaseException,
        batch_id: int,
        query_id: str | None,
        attempts: int,
        first: datetime,
        met: trouble.Trouble | None = None,
    ) -> Failure:
        stage = self._stage
        described = describe(error, redact=stage.policy.redact)
        cause = (met or trouble.read(error, stage.policy.classify)).cause
        return Failure(
            stage=stage.name,
            category=stage.category,
            cause=cause,
            exception_types=described.types,
            message=described.message,
            trace=described.trace,
            fingerprint=described.fingerprint,
            attempts=attempts,
            first_failed_at=first,
            last_failed_at=datetime.now(UTC),
            app=stage.app,
            query_id=query_id,
            batch_id=batch_id,
            payload="row",
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
