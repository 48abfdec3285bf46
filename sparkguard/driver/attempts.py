"""Attempts: one call of a batch function, tried again while its trouble is transient.

Over the whole batch, or over rows of it that were set aside; and what becomes of rows
whose call failed for good.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, assert_never

from sparkguard.core.decide import decide, stage_failed
from sparkguard.core.failure import Category, Cause, Failure
from sparkguard.core.fingerprint import describe
from sparkguard.core.outcome import Continue, DeadLetter, Fail, Restart, RetryLater
from sparkguard.core.policy import Policy
from sparkguard.core.retry import TaskTimeout, backoff, hinted, should_retry
from sparkguard.core.sub_batch import SubBatch
from sparkguard.driver import connect, trouble
from sparkguard.driver.clock import Clock
from sparkguard.driver.isolation import Left
from sparkguard.driver.rows import write_letters
from sparkguard.driver.stop import Stop, StoppedBatchError
from sparkguard.driver.trouble import Trouble
from sparkguard.events import BATCH_FAILED, RETRY_SCHEDULED, log
from sparkguard.executor.plan import ORIGIN_COLUMN
from sparkguard.executor.task import TRY
from sparkguard.sinks.base import Sink


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchStage:
    """A foreach_batch stage bound to its settings.

    Attributes:
        takes_origin: the function is handed the hidden columns too.
        check: looks at the sinks before the first batch; raises what makes letters impossible.
    """

    app: str
    name: str
    category: Category
    policy: Policy
    function: Callable[..., Any]
    sinks: dict[str, Sink]
    wants_sub_batch: bool = False
    takes_origin: bool = False
    check: Callable[[Any], None] = lambda _: None


@dataclass(slots=True, kw_only=True)
class Tries:
    """What one batch has been through, or some rows of it that were set aside.

    Attributes:
        query: on Spark Connect, the query itself.
    """

    batch: Any
    batch_id: int
    query_id: str | None
    query: Any = None
    failed: int = 0
    first: datetime = field(default_factory=lambda: datetime.now(UTC))
    token: str = field(default_factory=lambda: uuid.uuid4().hex)

    def fresh(self) -> Tries:
        """The same batch, tried never."""
        return replace(self, failed=0, first=datetime.now(UTC))


class Attempts:
    """The calls of one batch stage."""

    def __init__(self, stage: BatchStage, stop: Stop, clock: Clock) -> None:
        self.stage = stage
        self._stop = stop
        self._clock = clock

    def run(self, tries: Tries, call: Callable[[], Any]) -> Failure | None:
        """Call until it goes well (None) or is not to be tried again.

        Raises:
            StoppedBatchError: the query is being stopped.
            StageFailedError: a flow's stage has failed and was decided about.
        """
        policy = self.stage.policy
        timeout = TaskTimeout(policy.task_timeout)
        while True:
            error = self._try(tries, call)
            if error is None:
                return None
            met = self.met(error, tries)
            failure = self.failure(error, tries, met.cause)
            timeout.failed(self._clock.monotonic())
            now = self._clock.monotonic()
            if not should_retry(met.cause, tries.failed, policy.retry, timeout, now):
                return replace(failure, timed_out=timeout.expired(now))
            if self._wait(failure, timeout, tries):
                self._stop.gate(tries.batch, tries.query_id)
                raise stage_failed(failure, "stop", "the query is being stopped") from error

    def _try(self, tries: Tries, call: Callable[[], Any]) -> BaseException | None:
        if tries.query is not None:
            connect.mark(tries.batch, tries.query, tries.batch_id, tries.failed)
        elif not connect.is_connect(tries.batch.sparkSession):
            tries.batch.sparkSession.sparkContext.setLocalProperty(TRY, str(tries.failed))
        try:
            call()
        except BaseException as error:  # whatever user code raises is a failure (P11)
            tries.failed += 1
            if tries.failed == 1:
                tries.first = datetime.now(UTC)
            return error
        return None

    def call(self, tries: Tries, frame: Any, rows: range | None) -> None:
        """Call the user's function over the batch, or over these rows of it."""
        stage = self.stage
        hidden = ORIGIN_COLUMN in frame.columns and not stage.takes_origin
        shown = frame.drop(ORIGIN_COLUMN) if hidden else frame
        if not stage.wants_sub_batch:
            stage.function(shown, tries.batch_id)
            return
        # Outside a query no batch is replayed, and all have the same number.
        writer = f"{stage.app}/{stage.name}/{tries.query_id or tries.token}"
        stage.function(shown, tries.batch_id, SubBatch.of(writer, tries.batch_id, rows))

    def met(self, error: BaseException, tries: Tries) -> Trouble:
        """What the exception means, if it is a failure of this stage.

        Raises:
            StoppedBatchError: the query is being stopped, whatever came out of it.
            StageFailedError: a flow's stage has failed and was decided about.
        """
        met = trouble.read(error, self.stage.policy.classify)
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

    def _wait(self, failure: Failure, timeout: TaskTimeout, tries: Tries) -> bool:
        """Wait before the next try; whether the query is about to be stopped instead."""
        error = failure.exception
        hint = (hinted(error) if error else None) or 0.0
        wait = max(backoff(self.stage.policy.retry, tries.failed, random.random), hint)
        wait = timeout.clip(wait, self._clock.monotonic())
        log(
            RETRY_SCHEDULED,
            stage=self.stage.name,
            batch_id=tries.batch_id,
            attempt=tries.failed,
            wait_seconds=round(wait, 3),
            exception=failure.exception_type,
        )
        return self._stop.pause(tries.batch, wait)

    def counted(self, tries: Tries) -> Failure:
        """What a failure of this batch says of it, but for the exception."""
        stage = self.stage
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

    def failure(self, error: BaseException, tries: Tries, cause: Cause) -> Failure:
        """The failure of this batch with this exception."""
        described = describe(error, redact=self.stage.policy.redact)
        return replace(
            self.counted(tries),
            cause=cause,
            exception_types=described.types,
            message=described.message,
            trace=described.trace,
            fingerprint=described.fingerprint,
            first_failed_at=tries.first,
            last_failed_at=datetime.now(UTC),
            exception=error,
        )

    def leave(
        self, failure: Failure, frame: Any, rows: int, *, whole: bool, seen: Sequence[str] = ()
    ) -> Left:
        """Enact what is decided about rows that failed.

        Args:
            rows: how many there must be, where that is known.
            whole: it is no row's own fault, so the settings must allow it.
            seen: identities of letters that this batch has already.

        Raises:
            StageFailedError: they may not leave, or not all were stored.
        """
        outcome = decide(failure, self.stage.policy)
        if whole:
            log(
                BATCH_FAILED,
                stage=failure.stage,
                batch_id=failure.batch_id,
                cause=failure.cause.value,
                outcome=type(outcome).__name__,
                exception=failure.exception_type,
            )
        allowed = not whole or self.stage.policy.whole_batch is not None
        if isinstance(outcome, Continue | DeadLetter) and not allowed:
            reason = "a whole batch leaves only where the settings say 'whole_batch'"
            raise stage_failed(failure, "fail", reason) from failure.exception
        match outcome:
            case Continue():
                left = Left(fact="skipped", rows=frame.count())
            case DeadLetter(sink):
                name = sink or self.stage.policy.sink
                stored = write_letters(frame, failure, name, self.stage.sinks, seen=seen)
                left = Left(fact="dead_lettered", rows=stored.rows, letter=stored.identity)
            case Fail(reason):
                raise stage_failed(failure, "fail", reason) from failure.exception
            case Restart(reason):
                raise stage_failed(failure, "restart", reason) from failure.exception
            case RetryLater():
                reason = "only a record of a flow can be retried later, and this is a batch"
                raise stage_failed(failure, "fail", reason) from failure.exception
            case _:
                assert_never(outcome)
        if rows and left.rows != rows:
            reason = f"of {rows} rows that were set aside {left.rows} could be read"
            raise stage_failed(failure, "fail", reason) from failure.exception
        return left
