"""Every log event sparkguard emits: dotted, past tense, with its fields.

The docs quote this file; a test holds the two together.
"""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from typing import Any, Final

RECORD_FAILED: Final = "sparkguard.record_failed"
"""A worker met a failing record, at a bounded rate: stage, cause, outcome, coordinates."""

RETRY_SCHEDULED: Final = "sparkguard.retry_scheduled"
"""An attempt failed and will be repeated: stage, attempt, wait_seconds, exception."""

BATCH_FINISHED: Final = "sparkguard.batch_finished"
"""One line a batch: flow, batch_id, in, out, filtered, skipped, dead_lettered, delayed, top."""

BATCH_FAILED: Final = "sparkguard.batch_failed"
"""A batch function failed for good: stage, batch_id, cause, outcome, exception."""

ISOLATION_STARTED: Final = "sparkguard.isolation_started"
"""The bad rows of a batch are looked for: stage, batch_id, rows, done, exception."""

ISOLATION_FINISHED: Final = "sparkguard.isolation_finished"
"""They were found: stage, batch_id, rows, written, dead_lettered, skipped, calls."""

ISOLATION_JOURNAL: Final = "sparkguard.isolation_journal"
"""A journal is not that of the batch as it is planned now: stage, batch_id, problem."""

ISOLATION_LEFT: Final = "sparkguard.isolation_left"
"""Files of an isolation could not be removed, by hand they may be: folder, exception."""

BUDGET_EXCEEDED: Final = "sparkguard.budget_exceeded"
"""A stage failed more records than its budget allows: stage, failed, window, max_ratio."""

COUNTS_LOST: Final = "sparkguard.counts_lost"
"""A committed batch has no account, its driver died first: flow, batch_id, in."""

CARE_ENDED: Final = "sparkguard.care_ended"
"""The note that a worker of a query died could not be removed: query_id, problem."""

QUERY_STARTED: Final = "sparkguard.query_started"
"""The supervisor started a query: query, starts."""

QUERY_FAILED: Final = "sparkguard.query_failed"
"""A query ended with an exception: query, cause, stage, coordinates, exception."""

RESTART_SCHEDULED: Final = "sparkguard.restart_scheduled"
"""The supervisor will start a query again: query, restarts, wait_seconds, cause."""

RESTART_REFUSED: Final = "sparkguard.restart_refused"
"""The limit is used up, or the cause is none that a restart heals: query, restarts, cause."""

STOP_REQUESTED: Final = "sparkguard.stop_requested"
"""A signal or the stop marker asked the queries to stop: by."""

QUERY_STOPPED: Final = "sparkguard.query_stopped"
"""A query was stopped between two batches: query, batch_id."""

STAGE_UNUSED: Final = "sparkguard.stage_unused"
"""The settings name a stage that no flow uses: stage."""

HEADERS_MISSING: Final = "sparkguard.headers_missing"
"""A Kafka frame was read without includeHeaders, letters will have none: flow."""

RETRIES_SENT: Final = "sparkguard.retries_sent"
"""The retry service sent back what was due, one line a batch: batch_id, topic, sent, aside."""

HOOK_FAILED: Final = "sparkguard.hook_failed"
"""A watcher raised; logged once per watcher: plugin, hook, exception."""


def log(event: str, *, level: int = logging.INFO, **fields: Any) -> None:
    """Hand an event to the stdlib logger ``sparkguard``, with its fields.

    The application's logging decides what becomes of it; nothing is printed here.
    """
    logger = logging.getLogger("sparkguard")
    if not logger.isEnabledFor(level):
        return
    import structlog

    bound = structlog.wrap_logger(
        logger,
        processors=[_with_extra],
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
    bound.log(level, event, **fields)


def _with_extra(
    _: Any, __: str, fields: MutableMapping[str, Any]
) -> tuple[tuple[str], dict[str, Any]]:
    event = fields.pop("event")
    text = " ".join(f"{name}={value!r}" for name, value in fields.items() if value is not None)
    return (f"{event} {text}".rstrip(),), {"extra": {"event": event, "fields": fields}}
