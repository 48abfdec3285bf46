"""The listener: settles the batches of queries whose sink is not a guarded batch function.

Spark reports a batch after its commit, so these accounts are stored after it;
a driver that dies in between leaves a batch whose counts are lost, which the
next start finds by the checkpoint.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

from sparkguard.driver.accounts import Accounts, Ledger
from sparkguard.driver.checkpoint import Checkpoint
from sparkguard.driver.settle import Settler
from sparkguard.errors import StageFailedError
from sparkguard.events import COUNTS_LOST, log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery


def listen(session: SparkSession, settler: Settler) -> None:
    """Settle every batch that Spark reports from now on."""
    from pyspark.sql.streaming import StreamingQueryListener

    class Listener(StreamingQueryListener):
        def onQueryStarted(self, event: Any) -> None:  # noqa: N802
            """Nothing to do."""

        def onQueryProgress(self, event: Any) -> None:  # noqa: N802
            progress = event.progress
            _settle(session, settler, progress)

        def onQueryIdle(self, event: Any) -> None:  # noqa: N802
            """Nothing to do."""

        def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
            """Nothing to do."""

    session.streams.addListener(Listener())


def _settle(session: SparkSession, settler: Settler, progress: Any) -> None:
    query_id = str(progress.id)
    try:
        settler.settle(query_id, int(progress.batchId), progress.name)
    except StageFailedError as breach:
        settler.breaches[query_id] = breach
        query = session.streams.get(query_id)
        if query is not None:
            # Stopping waits for the query's thread, which may wait for this one.
            threading.Thread(target=query.stop, name="sparkguard-breach", daemon=True).start()


def find_lost(query: StreamingQuery, accounts: Accounts, ledger: Ledger) -> None:
    """Report committed batches that have no account, with what they read.

    Looks at the batches that both the checkpoint and the ledger still remember.
    """
    path = checkpoint_path(query)
    if path is None:
        return
    query_id = str(query.id)
    known: dict[str, set[int]] = {}
    for account in ledger.batches():
        if account.query_id == query_id and account.batch_id is not None:
            known.setdefault(account.flow, set()).add(account.batch_id)
    checkpoint = Checkpoint(path)
    committed = checkpoint.committed()
    for flow, batches in known.items():
        missing = [batch for batch in committed if batch > min(batches) and batch not in batches]
        lost = [(batch, checkpoint.records_in(batch) or 0) for batch in missing]
        lost = [(batch, records) for batch, records in lost if records]
        accounts.lost(flow, query_id, lost)
        for batch_id, records_in in lost:
            log(
                COUNTS_LOST,
                level=logging.WARNING,
                flow=flow,
                batch_id=batch_id,
                records_in=records_in,
            )


def checkpoint_path(query: StreamingQuery) -> str | None:
    """Where the query keeps its checkpoint; None where the engine does not tell."""
    execution = getattr(query, "_jsq", None)
    if execution is None:
        return None
    path = str(execution.streamingQuery().resolvedCheckpointRoot())
    return path.removeprefix("file:") if path.startswith("file:/") else path
