"""A run: one query under the supervisor, through all of its starts."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sparkguard.core.watch import (
    Event,
    QueryFailed,
    QueryStarted,
    QueryStopped,
    RestartRefused,
    RestartScheduled,
)
from sparkguard.driver import trouble
from sparkguard.driver.clock import Clock
from sparkguard.driver.restarts import Restarts
from sparkguard.driver.stop import Stop
from sparkguard.errors import RestartLimitError, StageFailedError
from sparkguard.events import (
    QUERY_FAILED,
    QUERY_STARTED,
    QUERY_STOPPED,
    RESTART_REFUSED,
    RESTART_SCHEDULED,
    log,
)

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery


@dataclass(frozen=True, slots=True, kw_only=True)
class Desk:
    """What every run of a supervisor shares.

    Attributes:
        tell: tells the watchers.
        started: told of every query that starts.
        breach: the budget that a query's last batch exceeded, if it did.
    """

    app: str
    stop: Stop
    clock: Clock
    tell: Callable[[Event], None]
    started: Callable[[StreamingQuery], None]
    breach: Callable[[str], StageFailedError | None]
    flows: Callable[[], Mapping[str, tuple[str, ...]]]


class Run:
    """One `build` and its query."""

    def __init__(
        self, build: Callable[[], StreamingQuery], name: str, restarts: Restarts, desk: Desk
    ) -> None:
        self._build = build
        self._name = name
        self._restarts = restarts
        self._desk = desk
        self._query: Any = None
        self._start_at = 0.0
        self._starts = 0
        self._batch_before: int | None = None
        self.done = False

    @property
    def active(self) -> bool:
        """Whether its query runs now."""
        return self._query is not None and bool(self._query.isActive)

    def step(self) -> None:
        """Look once: start what is due, note progress, meet an end.

        Raises:
            RestartLimitError, StageFailedError, Exception: the query is down for good.
        """
        if self._query is None:
            if self._desk.clock.time() >= self._start_at:
                self._start()
            return
        self._note_progress()
        if not self._query.isActive:
            self._ended()

    def end(self, *, force: bool) -> bool:
        """Stop the query if no batch of it runs, or at once; whether it is stopped."""
        query = self._query
        if query.isActive:
            between = self._desk.stop.holds(str(query.id)) or not query.status["isTriggerActive"]
            if not between and not force:
                return False
            self._note_progress()
            query.stop()
        log(QUERY_STOPPED, query=self._name, batch_id=self._batch(), forced=force or None)
        self._desk.tell(
            QueryStopped(
                app=self._desk.app,
                query_name=self._name,
                query_id=str(query.id),
                batch_id=self._batch(),
            )
        )
        self._query = None
        self.done = True
        return True

    def _start(self) -> None:
        try:
            self._query = self._build()
        except Exception as error:
            self._failed(error, None)
            return
        if not hasattr(self._query, "isActive"):
            kind = type(self._query).__name__
            msg = f"The build {self._name!r} returned {kind}; it must return the started query."
            raise TypeError(msg)
        self._starts += 1
        self._batch_before = None
        self._desk.started(self._query)
        log(QUERY_STARTED, query=self._name, query_id=str(self._query.id), starts=self._starts)
        self._desk.tell(
            QueryStarted(
                app=self._desk.app,
                query_name=self._name,
                query_id=str(self._query.id),
                run_id=str(self._query.runId),
                starts=self._starts,
                flows=self._desk.flows(),
            )
        )

    def _note_progress(self) -> None:
        """A batch that ended since the last look clears the restarts (Spark reports it after the commit)."""
        batch = self._batch()
        if batch is not None and batch != self._batch_before:
            self._batch_before = batch
            self._restarts.progressed()

    def _batch(self) -> int | None:
        progress = self._query.lastProgress
        return None if progress is None else int(progress["batchId"])

    def _ended(self) -> None:
        query, self._query = self._query, None
        error = self._desk.breach(str(query.id)) or _exception(query)
        if error is None or self._desk.stop.requested:
            self.done = True
            return
        self._failed(error, query)

    def _failed(self, error: BaseException, query: Any) -> None:
        met = trouble.read(error)
        facts = met.decided.facts if met.decided else {}
        query_id = None if query is None else str(query.id)
        message = met.decided.sentence if met.decided else trouble.text_of(error)[:500]
        stage = str(facts.get("stage") or "")
        at = coordinates(facts)
        kind = str(facts.get("exception_type") or type(error).__name__)
        log(
            QUERY_FAILED,
            query=self._name,
            cause=met.cause.value,
            stage=stage or None,
            at=at or None,
            exception=kind,
        )
        self._desk.tell(
            QueryFailed(
                app=self._desk.app,
                query_name=self._name,
                query_id=query_id,
                cause=met.cause.value,
                stage=stage,
                coordinates=at,
                exception_type=kind,
                message=message,
            )
        )
        refusal = self._restarts.refusal()
        if met.restartable and refusal is None:
            self._schedule(met, query_id, message)
            return
        self.done = True
        self._refuse(met, query_id, refusal if met.restartable else None, message)

    def _schedule(self, met: trouble.Trouble, query_id: str | None, message: str) -> None:
        wait = self._restarts.next()
        self._start_at = self._desk.clock.time() + wait
        log(
            RESTART_SCHEDULED,
            query=self._name,
            restarts=self._restarts.since_commit,
            wait_seconds=round(wait, 3),
            cause=met.cause.value,
        )
        self._desk.tell(
            RestartScheduled(
                app=self._desk.app,
                query_name=self._name,
                query_id=query_id,
                restarts=self._restarts.since_commit,
                wait_seconds=wait,
                cause=met.cause.value,
                message=message,
            )
        )

    def _refuse(
        self, met: trouble.Trouble, query_id: str | None, refusal: str | None, message: str
    ) -> None:
        reason = refusal or f"no restart heals a {met.cause} cause"
        restarts = self._restarts.since_commit
        log(RESTART_REFUSED, query=self._name, restarts=restarts, cause=met.cause.value)
        self._desk.tell(
            RestartRefused(
                app=self._desk.app,
                query_name=self._name,
                query_id=query_id,
                restarts=restarts,
                cause=met.cause.value,
                reason=reason,
            )
        )
        cause = met.decided or met.error
        if refusal is None:
            raise cause
        sentence = f"Query {self._name!r} stays down: {refusal}. The last cause: {message}"
        # SystemExit prints nothing by itself, and this is the last thing a person reads.
        sys.stderr.write(sentence + "\n")
        raise RestartLimitError(sentence) from cause


def coordinates(facts: Mapping[str, Any]) -> str:
    """Where the record of a failed stage lies, from the facts that its error carries."""
    if facts.get("topic") is not None:
        return f"{facts['topic']}[{facts.get('partition')}]@{facts.get('offset')}"
    return str(facts.get("file") or "")


def _exception(query: Any) -> BaseException | None:
    """Why a query ended; None for a normal end. `awaitTermination` has the live chain."""
    try:
        query.awaitTermination()
    except Exception as error:
        return error
    found: BaseException | None = query.exception()
    return found
