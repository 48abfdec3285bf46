"""The counters, one object a name; and a gauge, the time of the last batch."""

from __future__ import annotations

from typing import Final

from prometheus_client import Counter, Gauge

from sparkguard.core.ledger import FACTS

FLOW: Final = ("app", "flow")
STAGE: Final = ("app", "flow", "stage")
QUERY: Final = ("app", "query")

RECORDS_IN: Final = Counter("sparkguard_records_in", "Records that went into a flow.", FLOW)
RECORDS_OUT: Final = Counter("sparkguard_records_out", "Records that came out of a flow.", FLOW)
ROWS_OUT: Final = Counter("sparkguard_rows_out", "Rows that a flow made of them.", FLOW)
BATCHES: Final = Counter("sparkguard_batches", "Finished batches.", FLOW)
COUNTS_LOST: Final = Counter(
    "sparkguard_counts_lost", "Batches whose driver died before they were counted.", FLOW
)

_TOLD: Final = {
    "entered": "Records that entered a stage.",
    "filtered": "Records that a filter took out.",
    "skipped": "Records dropped on purpose.",
    "dead_lettered": "Records stored as letters.",
    "delayed": "Records put off to be retried later.",
    "elements": "Elements of partial flat_maps that left alone.",
    "extra_letters": "Letters of such elements, beyond one a dead-lettered record.",
    "failed_attempts": "Tries that failed.",
    "retries": "Tries after the first.",
}
STAGES: Final = {
    fact: Counter(f"sparkguard_{fact}", _TOLD.get(fact, f"As the ledger's {fact}."), STAGE)
    for fact in FACTS
}
"""Counters by the ledger's fact."""

LAST_BATCH: Final = Gauge(
    "sparkguard_last_batch_timestamp_seconds", "When the last batch was finished.", FLOW
)
QUERIES_STARTED: Final = Counter(
    "sparkguard_queries_started", "Starts of queries, restarts among them.", QUERY
)
QUERIES_STOPPED: Final = Counter(
    "sparkguard_queries_stopped", "Queries stopped between two batches, on request.", QUERY
)
QUERIES_FAILED: Final = Counter(
    "sparkguard_queries_failed", "Queries that ended with an exception.", (*QUERY, "cause")
)
SINK_FAILURES: Final = Counter(
    "sparkguard_sink_failures", "Tasks that failed because a sink did not store a letter.", QUERY
)
RESTARTS: Final = Counter("sparkguard_restarts", "Restarts by the supervisor.", QUERY)
RESTARTS_REFUSED: Final = Counter(
    "sparkguard_restarts_refused", "Queries that were left down.", QUERY
)


def start_flow(app: str, flow: str, stages: tuple[str, ...]) -> None:
    """Make the label sets of a flow, at 0: a rate needs a beginning."""
    for counter in (RECORDS_IN, RECORDS_OUT, ROWS_OUT, BATCHES, COUNTS_LOST):
        counter.labels(app, flow)
    for stage in stages:
        for counter in STAGES.values():
            counter.labels(app, flow, stage)


def start_query(app: str, query: str) -> None:
    """Make the label sets of a query, at 0."""
    for counter in (QUERIES_STARTED, QUERIES_STOPPED, SINK_FAILURES, RESTARTS, RESTARTS_REFUSED):
        counter.labels(app, query)
    for cause in ("poison", "transient", "programming", "fatal"):
        QUERIES_FAILED.labels(app, query, cause)
