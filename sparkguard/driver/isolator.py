"""The isolator: sets a poisoned batch aside, isolates its bad rows, and follows the journal."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from typing import Any

from sparkguard.core.budget import Window
from sparkguard.core.decide import stage_failed
from sparkguard.core.failure import Cause, Failure
from sparkguard.driver.attempts import Attempts, Tries
from sparkguard.driver.checkpoint import Checkpoint, checkpoint_of
from sparkguard.driver.isolation import Ended, Isolation, Left
from sparkguard.driver.journal import Journal, Journals, Plan
from sparkguard.driver.settle import Settler
from sparkguard.driver.shelf import Shelf
from sparkguard.driver.stop import Stop
from sparkguard.events import (
    ISOLATION_FINISHED,
    ISOLATION_JOURNAL,
    ISOLATION_LEFT,
    ISOLATION_STARTED,
    log,
)


class Isolator:
    """Isolates the batches of one batch stage.

    Args:
        journals: of the guard.
        shelf: where rows are set aside.
    """

    def __init__(
        self,
        attempts: Attempts,
        settler: Settler,
        stop: Stop,
        *,
        journals: Journals,
        shelf: Shelf,
    ) -> None:
        self._attempts = attempts
        self._stage = attempts.stage
        self._settler = settler
        self._stop = stop
        self._journals = journals
        self._shelf = shelf
        self._windows: dict[str | None, Window] = {}
        self._session: Any = None

    def replayed(self, tries: Tries) -> Journal | None:
        """The journal that this batch is bound to, if it was being isolated before.

        One of another batch is removed: that this one came proves that it was committed.
        """
        self._session = tries.batch.sparkSession
        name, query_id = self._stage.name, tries.query_id
        journal = self._journals.find(name, query_id)
        if journal is None:
            return None
        facts = {"stage": name, "batch_id": tries.batch_id}
        if journal.plan.batch_id == tries.batch_id:
            offsets, stateful = self._planned(tries)
            if offsets is None or journal.plan.offsets in (None, offsets):
                if stateful:
                    # Spark asks each of the query's operators for what it did in this batch.
                    tries.batch.write.format("noop").mode("overwrite").save()
                return journal
            problem = "the batch was planned anew and reads other records"
            log(ISOLATION_JOURNAL, level=logging.WARNING, **facts, problem=problem)
        self._forget(query_id, journal)
        return None

    def _planned(self, tries: Tries) -> tuple[str | None, bool]:
        """What the batch is planned to read, as a digest, and whether its query keeps state."""
        path = checkpoint_of(tries.batch)
        if path is None:
            return None, False
        try:
            checkpoint = Checkpoint(path.removeprefix("file:"))
            return checkpoint.digest(tries.batch_id), checkpoint.stateful
        except Exception as error:
            # Spark may know filesystems that Python does not; then a number must do.
            problem = f"the checkpoint {path!r} cannot be read: {type(error).__name__}: {error}"
            log(ISOLATION_JOURNAL, level=logging.WARNING, stage=self._stage.name, problem=problem)
            return None, False

    def committed(self, query_id: str, batch_id: int) -> None:
        """Let go of what was set aside for a batch that Spark has committed; never raises."""
        try:
            journal = self._journals.find(self._stage.name, query_id)
            if journal is not None and journal.plan.batch_id == batch_id and self._session:
                self._forget(query_id, journal)
        except Exception as error:
            # The next batch finds it, or the next start.
            log(ISOLATION_LEFT, level=logging.WARNING, exception=type(error).__name__)

    def passed(self, query_id: str | None) -> None:
        """A batch went through: the failures before it were no outage."""
        self._windows.pop(query_id, None)

    def _forget(self, query_id: str | None, journal: Journal) -> None:
        if self._journals.drop(self._stage.name, query_id, journal):
            self._shelf.remove(self._session, journal.plan)

    def set_aside(self, tries: Tries, failure: Failure) -> frozenset[str]:
        """Set the rows of a batch aside that one of them has poisoned, and isolate it."""
        plans: list[Plan] = []
        kept = self._attempts.run(
            tries.fresh(), lambda: plans.append(self._shelf.put(tries.batch, tries.batch_id))
        )
        if kept is not None and kept.cause is Cause.TRANSIENT:
            left = self._attempts.leave(kept, tries.batch, 0, whole=True)
            self._settler.left(kept, left.fact, left.rows)
            return frozenset()
        if kept is not None or not plans[-1].rows:
            problem = "it has no rows" if kept is None else f"{kept.exception_type}: {kept.message}"
            reason = f"its rows could not be set aside to look for the bad ones ({problem})"
            raise stage_failed(failure, "fail", reason) from failure.exception
        # A replay follows the journal and does not evaluate the flows again: they are counted now.
        flows = self._settler.settle(tries.query_id, tries.batch_id)
        offsets, _ = self._planned(tries)
        plan = replace(plans[-1], flows=tuple(sorted(flows)), offsets=offsets)
        journal = self._journals.begin(self._stage.name, tries.query_id, plan, tries.failed)
        self.isolate(tries, journal, failure)
        return flows

    def isolate(self, tries: Tries, journal: Journal, failure: Failure | None = None) -> None:
        """Go on where the journal stands until each row is written or has left, and account for it.

        Raises:
            StageFailedError: it was decided so, or the bad rows are too many.
        """
        stage, plan = self._stage, journal.plan
        facts: dict[str, Any] = {"stage": stage.name, "batch_id": plan.batch_id, "rows": plan.rows}
        why = None if failure is None else failure.exception_type
        log(ISOLATION_STARTED, **facts, done=journal.progress.done, exception=why)
        budget, query_id = stage.policy.budget, tries.query_id
        isolation = Isolation(
            journal=journal,
            call=partial(self._part, tries, plan),
            leave=partial(self._row, tries, journal),
            limit=stage.policy.max_calls,
            window=self._windows.get(query_id) or (Window(budget) if budget else None),
        )
        isolation.run()
        after = isolation.judged()
        if after is not None:
            self._windows[query_id] = after
        progress = journal.progress
        self._settler.isolated(self._attempts.counted(tries), plan.rows, progress)
        log(ISOLATION_FINISHED, **facts, **progress.counts())
        if query_id is None:
            # Nothing is committed, and the next batch may have the same number.
            self._forget(None, journal)

    def _part(self, tries: Tries, plan: Plan, rows: range) -> Ended:
        """Write some rows that were set aside; a stop ends the batch in front of them."""
        self._stop.gate(tries.batch, tries.query_id)
        frame = self._taken(tries, plan, rows)
        mine = tries.fresh()
        failure = self._attempts.run(mine, partial(self._attempts.call, mine, frame, rows))
        return Ended(failure=failure, failed=mine.failed)

    def _taken(self, tries: Tries, plan: Plan, rows: range) -> Any:
        try:
            return self._shelf.take(tries.batch, plan, rows)
        except Exception as error:
            # It may be a stop; it is no fault of the rows.
            self._attempts.met(error, tries)
            raise

    def _row(self, tries: Tries, journal: Journal, rows: range, failure: Failure) -> Left:
        """Let a row leave that stood alone, or rows that met the end of an outage's retries."""
        frame = self._taken(tries, journal.plan, rows)
        whole = failure.cause is not Cause.POISON
        seen = () if whole else journal.progress.letters
        left = self._attempts.leave(failure, frame, len(rows), whole=whole, seen=seen)
        return left if len(rows) == 1 else replace(left, letter=None)
