"""What watchers are told: one frozen value an event, made on the driver.

A hook takes exactly one of these. New facts become new fields with defaults,
so a watcher written today still runs tomorrow.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from sparkguard.core.ledger import Account


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryStarted:
    """The supervisor started a query.

    Attributes:
        starts: how often it was started in this process, this time included.
        flows: names of the stages by flow, of every flow the guard has built.
    """

    hook: ClassVar[str] = "on_query_started"

    app: str = ""
    query_name: str | None = None
    query_id: str | None = None
    run_id: str | None = None
    starts: int = 1
    flows: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFinished:
    """A batch of one flow is done, and this is its account.

    Attributes:
        account: counts by stage; `Account.top` has at most 20 fingerprints, each
            with its count, the coordinates of one record and one redacted message.
    """

    hook: ClassVar[str] = "on_batch_finished"

    app: str = ""
    flow: str = ""
    query_name: str | None = None
    query_id: str | None = None
    batch_id: int | None = None
    account: Account


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryFailed:
    """A query ended with an exception.

    Attributes:
        stage, coordinates: where, if a guarded stage was it; else empty.
        sink: the sink that did not store a letter, if that was it; else empty.
        message: bounded and redacted text of the exception.
    """

    hook: ClassVar[str] = "on_query_failed"

    app: str = ""
    query_name: str | None = None
    query_id: str | None = None
    cause: str = ""
    stage: str = ""
    coordinates: str = ""
    exception_type: str = ""
    message: str = ""
    sink: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartScheduled:
    """The supervisor will start a failed query again.

    Attributes:
        restarts: restarts since the last committed batch, this one included.
        wait_seconds: how long it waits before.
    """

    hook: ClassVar[str] = "on_restart_scheduled"

    app: str = ""
    query_name: str | None = None
    query_id: str | None = None
    restarts: int = 1
    wait_seconds: float = 0.0
    cause: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartRefused:
    """A failed query stays down: the limit is used up, or no restart heals its cause.

    Attributes:
        reason: one sentence, says which of the two it was.
    """

    hook: ClassVar[str] = "on_restart_refused"

    app: str = ""
    query_name: str | None = None
    query_id: str | None = None
    restarts: int = 0
    cause: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryStopped:
    """A query was stopped between two batches, on request.

    Attributes:
        batch_id: the last committed batch, if there was one.
    """

    hook: ClassVar[str] = "on_query_stopped"

    app: str = ""
    query_name: str | None = None
    query_id: str | None = None
    batch_id: int | None = None


Event = (
    QueryStarted | BatchFinished | QueryFailed | RestartScheduled | RestartRefused | QueryStopped
)
"""Everything a watcher can be told."""
