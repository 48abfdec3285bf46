"""The hooks: an event in, counters up."""

from __future__ import annotations

import threading

from sparkguard.core.ledger import Account
from sparkguard.core.watch import (
    BatchFinished,
    QueryFailed,
    QueryStarted,
    QueryStopped,
    RestartRefused,
    RestartScheduled,
)
from sparkguard.hookspecs import hookimpl
from sparkguard_prometheus import counters
from sparkguard_prometheus.server import ensure_started

_lock = threading.Lock()
_last: dict[tuple[str, str, str | None], BatchFinished] = {}


@hookimpl
def on_query_started(started: QueryStarted) -> None:
    """Show every counter at 0, then start the server."""
    counters.start_query(started.app, started.query_name or "")
    counters.QUERIES_STARTED.labels(started.app, started.query_name or "").inc()
    for flow, stages in started.flows.items():
        counters.start_flow(started.app, flow, stages)
    ensure_started()


@hookimpl
def on_batch_finished(batch: BatchFinished) -> None:
    """Add the batch's account; of a batch that is finished again only what is new."""
    account = batch.account
    where = (batch.app, batch.flow or account.flow)
    counters.start_flow(*where, tuple(account.stages))
    with _lock:
        key = (*where, batch.query_id)
        before = _last.get(key)
        _last[key] = batch
    again = before is not None and batch.batch_id is not None and before.batch_id == batch.batch_id
    known = before.account if before is not None and again else Account(flow=account.flow)
    counters.LAST_BATCH.labels(*where).set_to_current_time()
    if not again:
        counters.BATCHES.labels(*where).inc()
        if account.counts_lost:
            counters.COUNTS_LOST.labels(*where).inc()
    counters.RECORDS_IN.labels(*where).inc(max(0, account.records_in - known.records_in))
    counters.RECORDS_OUT.labels(*where).inc(max(0, account.records_out - known.records_out))
    counters.ROWS_OUT.labels(*where).inc(max(0, account.rows_out - known.rows_out))
    for stage, counts in account.stages.items():
        old = known.stages.get(stage, {})
        for fact, counter in counters.STAGES.items():
            more = counts.get(fact, 0) - old.get(fact, 0)
            counter.labels(*where, stage).inc(max(0, more))
    ensure_started()


@hookimpl
def on_query_failed(failed: QueryFailed) -> None:
    """Count the failed query by its cause, and the sink that made it fail."""
    if failed.sink:
        counters.SINK_FAILURES.labels(failed.app, failed.query_name or "").inc()
    counters.QUERIES_FAILED.labels(failed.app, failed.query_name or "", failed.cause).inc()
    ensure_started()


@hookimpl
def on_query_stopped(stopped: QueryStopped) -> None:
    """Count the query that was stopped on request."""
    counters.QUERIES_STOPPED.labels(stopped.app, stopped.query_name or "").inc()
    ensure_started()


@hookimpl
def on_restart_scheduled(restart: RestartScheduled) -> None:
    """Count the restart."""
    counters.RESTARTS.labels(restart.app, restart.query_name or "").inc()
    ensure_started()


@hookimpl
def on_restart_refused(refused: RestartRefused) -> None:
    """Count the query that stays down."""
    counters.RESTARTS_REFUSED.labels(refused.app, refused.query_name or "").inc()
    ensure_started()
