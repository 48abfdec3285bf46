"""The counters, one object a name."""

from __future__ import annotations

from typing import Final

from prometheus_client import Counter

FLOW: Final = ("app", "flow")
STAGE: Final = ("app", "flow", "stage")
QUERY: Final = ("app", "query")

RECORDS_IN: Final = Counter("sparkguard_records_in", "Records that went into a flow.", FLOW)
RECORDS_OUT: Final = Counter("sparkguard_records_out", "Records that came out of a flow.", FLOW)
BATCHES: Final = Counter("sparkguard_batches", "Finished batches.", FLOW)
COUNTS_LOST: Final = Counter(
    "sparkguard_counts_lost", "Batches whose driver died before they were counted.", FLOW
)

STAGES: Final = {
    "entered": Counter("sparkguard_entered", "Records that entered a stage.", STAGE),
    "filtered": Counter("sparkguard_filtered", "Records that a filter took out.", STAGE),
    "skipped": Counter("sparkguard_skipped", "Records dropped on purpose.", STAGE),
    "dead_lettered": Counter("sparkguard_dead_lettered", "Records stored as letters.", STAGE),
    "failed_attempts": Counter("sparkguard_failed_attempts", "Tries that failed.", STAGE),
    "retries": Counter("sparkguard_retries", "Tries after the first.", STAGE),
}
"""Counters by the ledger's fact."""

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
    for counter in (RECORDS_IN, RECORDS_OUT, BATCHES, COUNTS_LOST):
        counter.labels(app, flow)
    for stage in stages:
        for counter in STAGES.values():
            counter.labels(app, flow, stage)


def start_query(app: str, query: str) -> None:
    """Make the label sets of a query, at 0."""
    for counter in (SINK_FAILURES, RESTARTS, RESTARTS_REFUSED):
        counter.labels(app, query)
    for cause in ("poison", "transient", "programming", "fatal"):
        QUERIES_FAILED.labels(app, query, cause)
