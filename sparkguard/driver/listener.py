"""The listener: settles the batches of queries whose sink is not a guarded batch function.

Spark reports a batch after its commit, so these accounts are stored after it;
a driver that dies in between leaves a batch whose counts are lost, which the
next start finds by the checkpoint.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from sparkguard.driver.accounts import Accounts
from sparkguard.driver.checkpoint import Checkpoint
from sparkguard.driver.ledger import Ledger
from sparkguard.driver.settle import Settler
from sparkguard.errors import StageFailedError
from sparkguard.events import COUNTS_LOST, log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_DRAIN_MILLISECONDS = 30_000
_AT_ONCE = 100
"""Batches settled by one look at what stands as files."""


_HEARING: dict[str, list[Settler]] = {}
_HEARING_LOCK = threading.Lock()


def listen(session: SparkSession, settler: Settler) -> None:
    """Settle every batch that Spark reports from now on.

    A session has one listener for all of its guards: Spark calls them one after the other, and
    each call from the JVM costs more than what a guard does with a report that is not its own.
    """
    from pyspark.sql.streaming.listener import StreamingQueryListener

    key = session_key(session) or ""
    with _HEARING_LOCK:
        settlers = _HEARING.setdefault(key, [])
        settlers.append(settler)
        if len(settlers) > 1:
            return

    class Listener(StreamingQueryListener):
        def onQueryStarted(self, event: Any) -> None:  # noqa: N802
            """Nothing to do."""

        def onQueryProgress(self, event: Any) -> None:  # noqa: N802
            settle_all(tuple(settlers), event.progress)

        def onQueryIdle(self, event: Any) -> None:  # noqa: N802
            """Nothing to do."""

        def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
            """Nothing to do."""

    session.streams.addListener(Listener())


def session_of(query: StreamingQuery) -> SparkSession | None:
    """The session that the query was started in; None where the engine does not tell."""
    execution: Any = getattr(query, "_jsq", None)
    if execution is None:
        return None
    # Not there in the distribution that has Spark Connect's client alone.
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    return SparkSession(SparkContext.getOrCreate(), execution.sparkSession())


def session_key(session: SparkSession) -> str | None:
    """What tells one session from another; None where the engine does not tell."""
    known: Any = getattr(session, "_jsparkSession", None)
    return None if known is None else str(known.sessionUUID())


def settle_all(settlers: Sequence[Settler], progress: Any) -> None:
    """Settle a batch with every guard; one that cannot keeps no other from it.

    Raises:
        Exception: what the last of them raised; Spark logs it.
    """
    failed: Exception | None = None
    for settler in settlers:
        try:
            settle(settler, progress)
        except Exception as error:
            failed = error
    if failed is not None:
        raise failed


def settle(settler: Settler, progress: Any) -> None:
    """Settle a batch that was committed; a query that is over its budget runs no other."""
    run_id, name = str(progress.runId), progress.name
    settle_committed(settler, str(progress.id), int(progress.batchId), run_id, name=name)


def settle_committed(
    settler: Settler, query_id: str, batch_id: int, run_id: str, *, name: str | None = None
) -> None:
    """The same for a batch that somebody else knows to be committed."""
    try:
        settler.settle(query_id, batch_id, name, committed=True)
    except StageFailedError as breach:
        settler.breaches.put(query_id, run_id, breach)


def drain(query: Any) -> None:
    """Wait until Spark has reported every batch of a query that has ended, at most half a minute.

    Reports come from a thread of Spark's; without this the last batches of a process
    would have no account.
    """
    execution = getattr(query, "_jsq", None)
    if execution is None:
        return
    try:
        _wait(execution.sparkSession().sparkContext())
    except Exception as error:
        # A session that is stopped or stuck reports no more; the next start finds what is missing.
        log(COUNTS_LOST, level=logging.DEBUG, problem=f"{type(error).__name__} while draining")


def drain_bus(context: Any) -> None:
    """Wait until Spark's own books know of every job that has ended, at most half a minute."""
    _wait(context._jsc.sc())  # noqa: SLF001  # the bus has no public door


def _wait(context: Any) -> None:
    context.listenerBus().waitUntilEmpty(_DRAIN_MILLISECONDS)


def find_lost(query: StreamingQuery, accounts: Accounts, ledger: Ledger) -> None:
    """Report committed batches that have no account, with what they read.

    Looks at the batches that both the checkpoint and the ledger still remember.
    """
    path = checkpoint_path(query)
    if path is None:
        return
    query_id = str(query.id)
    # The checkpoint first: a batch of the running query gets its account before its commit.
    read = _committed(path)
    known: dict[str, set[int]] = {}
    for account in ledger.batches():
        if account.query_id == query_id and account.batch_id is not None and not account.own:
            known.setdefault(account.flow, set()).add(account.batch_id)
    # A batch in which another flow has an account was settled: this flow had nothing in it.
    settled = set().union(*known.values())
    for flow, batches in known.items():
        missing = [
            (batch, records)
            for batch, records in read.items()
            if batch > min(batches) and batch not in settled and records != 0
        ]
        for lost in accounts.lost(flow, query_id, [(batch, n or 0) for batch, n in missing]):
            log(
                COUNTS_LOST,
                level=logging.WARNING,
                flow=flow,
                batch_id=lost.batch_id,
                records_in=read[lost.batch_id or 0],
            )


def _committed(path: str) -> dict[int, int | None]:
    """The committed batches and what they read; None where the checkpoint does not tell."""
    try:
        checkpoint = Checkpoint(path)
        return {batch: checkpoint.records_in(batch) for batch in checkpoint.committed()}
    except Exception as error:
        # Spark may know filesystems that Python does not; that is no reason to stop a query.
        problem = f"the checkpoint {path!r} cannot be read: {type(error).__name__}: {error}"
        log(COUNTS_LOST, level=logging.WARNING, problem=problem)
        return {}


def checkpoint_path(query: StreamingQuery) -> str | None:
    """Where the query keeps its checkpoint; None where the engine does not tell."""
    execution = getattr(query, "_jsq", None)
    if execution is None:
        return None
    path = str(execution.streamingQuery().resolvedCheckpointRoot())
    return path.removeprefix("file:") if path.startswith("file:/") else path


def settle_standing(settler: Settler, query_id: str = "", committed: int = -1) -> None:
    """Settle what stands as files and is committed: a later batch of its query proves it.

    A listener of Spark Connect would keep a client that does not stop its session from
    ending, so nobody is told of a commit.
    """
    standing = settler.accounts.standing()
    newest = {query: batch for query, batch, _ in standing}
    ended = (
        one
        for one in standing
        if one[1] < newest[one[0]] or (one[0] == query_id and one[1] <= committed)
    )
    # The supervisor waits meanwhile; what is left stands for itself until the next look.
    for query, batch, run in islice(ended, _AT_ONCE):
        settle_committed(settler, query, batch, run)
