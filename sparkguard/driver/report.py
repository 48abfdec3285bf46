"""The report: what becomes of a query, said to the log and to the watchers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sparkguard.core.record import Record
from sparkguard.core.watch import (
    Event,
    QueryFailed,
    QueryStarted,
    QueryStopped,
    RestartRefused,
    RestartScheduled,
)
from sparkguard.driver import trouble
from sparkguard.driver.trouble import Trouble
from sparkguard.events import (
    QUERY_FAILED,
    QUERY_STARTED,
    QUERY_STOPPED,
    RESTART_REFUSED,
    RESTART_SCHEDULED,
    log,
)

_MESSAGE = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Tells of one query.

    Attributes:
        query: its name, the one of its build.
        tell: tells the watchers.
    """

    app: str
    query: str
    tell: Callable[[Event], None]

    def started(self, query: Any, starts: int, flows: Mapping[str, tuple[str, ...]]) -> None:
        """The query runs."""
        log(QUERY_STARTED, query=self.query, query_id=str(query.id), starts=starts)
        self.tell(
            QueryStarted(
                app=self.app,
                query_name=self.query,
                query_id=str(query.id),
                run_id=str(query.runId),
                starts=starts,
                flows=flows,
            )
        )

    def failed(self, query_id: str | None, met: Trouble) -> None:
        """The query ended with an exception, or did not start."""
        facts = met.decided.facts if met.decided else {}
        stage, at = str(facts.get("stage") or ""), coordinates(facts)
        kind = str(facts.get("exception_type") or type(met.error).__name__)
        log(
            QUERY_FAILED,
            level=logging.WARNING,
            query=self.query,
            cause=met.cause.value,
            stage=stage or None,
            at=at or None,
            exception=kind,
        )
        self.tell(
            QueryFailed(
                app=self.app,
                query_name=self.query,
                query_id=query_id,
                cause=met.cause.value,
                stage=stage,
                coordinates=at,
                exception_type=kind,
                message=message(met),
                sink=str(facts.get("sink") or ""),
            )
        )

    def scheduled(self, query_id: str | None, met: Trouble, restarts: int, wait: float) -> None:
        """The query will be started again."""
        log(
            RESTART_SCHEDULED,
            level=logging.WARNING,
            query=self.query,
            restarts=restarts,
            wait_seconds=round(wait, 3),
            cause=met.cause.value,
        )
        self.tell(
            RestartScheduled(
                app=self.app,
                query_name=self.query,
                query_id=query_id,
                restarts=restarts,
                wait_seconds=wait,
                cause=met.cause.value,
                message=message(met),
            )
        )

    def refused(self, query_id: str | None, met: Trouble, restarts: int, reason: str) -> None:
        """The query stays down."""
        log(
            RESTART_REFUSED,
            level=logging.ERROR,
            query=self.query,
            restarts=restarts,
            cause=met.cause.value,
        )
        self.tell(
            RestartRefused(
                app=self.app,
                query_name=self.query,
                query_id=query_id,
                restarts=restarts,
                cause=met.cause.value,
                reason=reason,
            )
        )

    def stopped(self, query_id: str | None, batch_id: int | None, problem: str | None) -> None:
        """The query was stopped; `problem` says why not between two batches."""
        log(QUERY_STOPPED, query=self.query, batch_id=batch_id, problem=problem)
        self.tell(
            QueryStopped(app=self.app, query_name=self.query, query_id=query_id, batch_id=batch_id)
        )


def message(met: Trouble) -> str:
    """What went wrong, for people; bounded."""
    text = met.decided.sentence if met.decided else trouble.text_of(met.error)
    return text[:_MESSAGE]


def coordinates(facts: Mapping[str, Any]) -> str:
    """Where the record of a failed stage lies, from the facts that its error carries."""
    return Record(
        topic=facts.get("topic"),
        partition=facts.get("partition"),
        offset=facts.get("offset"),
        file=facts.get("file"),
    ).coordinates
