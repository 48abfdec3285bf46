"""The counters, without HTTP: what an event adds."""

import time

from prometheus_client import REGISTRY

import sparkguard_prometheus
from sparkguard.core.ledger import Account
from sparkguard.core.watch import (
    BatchFinished,
    QueryFailed,
    QueryStarted,
    QueryStopped,
    RestartRefused,
    RestartScheduled,
)
from sparkguard.plugins import load, notify

MEMBERS = load([("prometheus", sparkguard_prometheus)])


def value(name: str, **labels: str) -> float | None:
    """What the registry shows."""
    return REGISTRY.get_sample_value(name, labels)


def finished(app: str, batch_id: int, **counts: int) -> BatchFinished:
    """A batch of 10 records, one stage."""
    stages = {"price": {"entered": 10, **counts}}
    account = Account(flow="orders", records_in=10, records_out=8, rows_out=9, stages=stages)
    return BatchFinished(app=app, flow="orders", query_id="q", batch_id=batch_id, account=account)


def test_batch_adds_up() -> None:
    """Counters of P19 are apart, and add up over batches."""
    notify(MEMBERS, finished("adds", 0, skipped=1, dead_lettered=1, failed_attempts=3, retries=1))
    notify(MEMBERS, finished("adds", 1, skipped=2))
    at = {"app": "adds", "flow": "orders"}
    assert value("sparkguard_records_in_total", **at) == 20
    assert value("sparkguard_records_out_total", **at) == 16
    assert value("sparkguard_rows_out_total", **at) == 18
    assert value("sparkguard_batches_total", **at) == 2
    assert time.time() - (value("sparkguard_last_batch_timestamp_seconds", **at) or 0) < 60
    stage = {**at, "stage": "price"}
    assert value("sparkguard_entered_total", **stage) == 20
    assert value("sparkguard_skipped_total", **stage) == 3
    assert value("sparkguard_dead_lettered_total", **stage) == 1
    assert value("sparkguard_failed_attempts_total", **stage) == 3
    assert value("sparkguard_retries_total", **stage) == 1


def test_batch_finished_again_counts_once() -> None:
    """A batch that a restart repeats adds only what is new."""
    notify(MEMBERS, finished("again", 0, skipped=1))
    notify(MEMBERS, finished("again", 0, skipped=2))
    at = {"app": "again", "flow": "orders"}
    assert value("sparkguard_records_in_total", **at) == 10
    assert value("sparkguard_batches_total", **at) == 1
    assert value("sparkguard_skipped_total", **at, stage="price") == 2


def test_counters_start_at_zero() -> None:
    """A started query shows every counter before anything was counted."""
    flows = {"orders": ("decode", "price")}
    notify(MEMBERS, QueryStarted(app="zero", query_name="q1", query_id="id-1", flows=flows))
    assert value("sparkguard_records_in_total", app="zero", flow="orders") == 0
    for stage in flows["orders"]:
        at = {"app": "zero", "flow": "orders", "stage": stage}
        assert value("sparkguard_dead_lettered_total", **at) == 0
    assert value("sparkguard_restarts_total", app="zero", query="q1") == 0


def test_restarts_are_apart() -> None:
    """Failures, restarts and refusals have counters of their own (P19)."""
    failed = QueryFailed(app="apart", query_name="q1", cause="transient", sink="dead")
    notify(MEMBERS, QueryStarted(app="apart", query_name="q1"))
    notify(MEMBERS, failed)
    notify(MEMBERS, RestartScheduled(app="apart", query_name="q1"))
    notify(MEMBERS, RestartScheduled(app="apart", query_name="q1"))
    notify(MEMBERS, RestartRefused(app="apart", query_name="q1"))
    notify(MEMBERS, QueryStopped(app="apart", query_name="q1"))
    at = {"app": "apart", "query": "q1"}
    assert value("sparkguard_queries_failed_total", **at, cause="transient") == 1
    assert value("sparkguard_sink_failures_total", **at) == 1
    assert value("sparkguard_restarts_total", **at) == 2
    assert value("sparkguard_restarts_refused_total", **at) == 1
    assert value("sparkguard_queries_started_total", **at) == 1
    assert value("sparkguard_queries_stopped_total", **at) == 1


def test_no_ids_in_labels() -> None:
    """Label sets do not grow with runs: no query id, run id or batch id."""
    names = {
        label
        for metric in REGISTRY.collect()
        if metric.name.startswith("sparkguard_")
        for sample in metric.samples
        for label in sample.labels
    }
    assert names == {"app", "flow", "stage", "query", "cause"}
