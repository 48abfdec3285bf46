"""The batch: a user's foreachBatch function, guarded.

Tried again while its trouble is transient and the task timeout allows it, then
routed like every failure, or isolated where that is asked for. The accounts are
stored before the function returns, so before Spark commits the batch. Nothing but
an ordinary exception leaves it: any other would hang the query for ever.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from sparkguard.core.decide import stage_failed
from sparkguard.core.failure import Cause
from sparkguard.driver.attempts import Attempts, BatchStage, Tries
from sparkguard.driver.clock import Clock, SystemClock
from sparkguard.driver.connect import is_connect, query_of, refuse
from sparkguard.driver.isolator import Isolator
from sparkguard.driver.journal import Journals
from sparkguard.driver.settle import Settler
from sparkguard.driver.shelf import ParquetShelf, Shelf
from sparkguard.driver.stop import Stop
from sparkguard.driver.swallowed import Jobs
from sparkguard.errors import StageFailedError
from sparkguard.pickling import Portable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["BatchFunction", "BatchStage"]


class BatchFunction(Portable):
    """What Spark's foreachBatch is given.

    Args:
        journals: of the guard's isolations; without them none is replayed.
        shelf: where an isolation sets rows aside.
    """

    def __init__(  # noqa: PLR0913 - what a guard's queries share, and what tests replace
        self,
        stage: BatchStage,
        settler: Settler,
        stop: Stop,
        *,
        clock: Clock | None = None,
        journals: Journals | None = None,
        shelf: Shelf | None = None,
    ) -> None:
        self._stage = stage
        self._settler = settler
        self._stop = stop
        self._query: Any = None
        self._attempts = Attempts(stage, stop, clock or SystemClock())
        self._isolator = Isolator(
            self._attempts,
            settler,
            stop,
            journals=journals or Journals(),
            shelf=shelf or ParquetShelf(stage.name, "state"),
        )
        self._checked = False
        settler.on_commit.append(self._isolator.committed)
        self.__name__ = stage.name

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Run one micro-batch; returns only when it may be committed."""
        remote = is_connect(batch.sparkSession)
        tries = self._remote(batch, batch_id) if remote else _classic(batch, batch_id)
        query_id = tries.query_id
        try:
            if not self._checked:
                self._stage.check(batch)
                self._checked = True
            self._stop.gate(batch, query_id)
            jobs = None if remote else Jobs(batch.sparkSession.sparkContext)
            counted = self._run(tries)
            swallowed = self._swallowed(tries)
            if swallowed is None:
                self._settler.settle(query_id, batch_id)
                if jobs is not None:
                    latest = self._settler.accounts.latest(query_id, batch_id)
                    swallowed = jobs.failed(counted, latest)
            if swallowed is not None:
                # The function caught what was not its own: the flow's records are nowhere (P1).
                raise swallowed
        except Exception:
            # What Py4J can pass on goes on as it is.
            raise
        except BaseException as error:
            # Py4J passes on nothing but an Exception, and the query would hang (P11).
            tries.failed += 1
            failure = self._attempts.failure(error, tries, Cause.FATAL)
            raise stage_failed(failure, "fail", "it is no ordinary exception") from error

    def _remote(self, batch: DataFrame, batch_id: int) -> Tries:
        """A batch on Spark Connect.

        Raises:
            UnsupportedError: the settings ask for what it cannot do.
        """
        refuse(self._stage)
        # The process serves one run of one query.
        self._query = self._query or query_of(batch, self._stage.name)
        query_id = None if self._query is None else str(self._query.id)
        return Tries(batch=batch, batch_id=batch_id, query_id=query_id, query=self._query)

    def _swallowed(self, tries: Tries) -> StageFailedError | None:
        """The same as `Jobs.failed` on Spark Connect, where tasks leave word in the state."""
        if tries.query is None:
            return None
        query, run = str(tries.query.id), f"{tries.query.runId}/{tries.failed}"
        failed = self._settler.accounts.swallowed(query, tries.batch_id, run)
        return None if failed is None else StageFailedError.find(failed)

    def _run(self, tries: Tries) -> frozenset[str]:
        """Bring one batch to its end; the flows that were settled on the way."""
        journal = self._isolator.replayed(tries)
        if journal is not None:
            self._isolator.isolate(tries, journal)
            return frozenset(journal.plan.flows)
        failure = self._attempts.run(tries, partial(self._attempts.call, tries, tries.batch, None))
        if failure is None:
            self._passed(tries)
        elif self._stage.policy.isolate and failure.cause is Cause.POISON:
            return self._isolator.set_aside(tries, failure)
        else:
            left = self._attempts.leave(failure, tries.batch, 0, whole=True)
            self._settler.left(failure, left.fact, left.rows)
        return frozenset()

    def _passed(self, tries: Tries) -> None:
        self._isolator.passed(tries.query_id)
        if tries.failed:
            self._settler.passed(self._attempts.counted(tries))
        elif self._stage.policy.whole_batch is not None:
            self._settler.clean(self._stage.name, tries.query_id, tries.batch_id)


def _classic(batch: DataFrame, batch_id: int) -> Tries:
    query_id = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
    return Tries(batch=batch, batch_id=batch_id, query_id=query_id)
