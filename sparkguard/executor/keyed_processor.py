"""The processor: what Spark calls for each key of a stateful stage, once a batch.

It reads one value a key and writes it once, after the last event. Letters are acknowledged in
`close`, which Spark calls before a task's state is committed; where that fails, the task does,
and another attempt begins with the state of the batch before.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)

from sparkguard import pickling
from sparkguard.core.versions import Memory, stored
from sparkguard.executor.keyed_plan import EMITTED, KeyedPlan
from sparkguard.executor.keyed_run import KeyRun
from sparkguard.executor.keyed_task import KeyedTask
from sparkguard.executor.task import StoppedError, Task
from sparkguard.executor.work import Work

MEMORY: Final = "memory"
"""Name of the state variable, and of its only column."""

_Emitted = Row(EMITTED)


class Processor(StatefulProcessor):
    """A stateful stage as Spark's stateful processor.

    Args:
        work: the pickled `KeyedPlan`.
        ttl: milliseconds; None for ever.
        slot: the way back for the task's counts.
    """

    def __init__(self, work: bytes, ttl: int | None, slot: Any) -> None:
        self._work = work
        self._ttl = ttl
        self._slot = slot
        self._keyed: KeyedTask | None = None

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state; Spark calls this once on the driver too."""
        self._handle = handle
        self._memory = handle.getValueState(MEMORY, f"{MEMORY} binary", self._ttl)

    def handleInputRows(  # noqa: N802 - the name is Spark's
        self,
        key: Any,
        rows: Iterator[Row],
        timerValues: TimerValues,  # noqa: N803
    ) -> Iterator[Row]:
        """Apply one key's events of the batch."""
        packed = [bytes(row[1]) for row in rows]
        yield from self._over(key, timerValues, lambda run: run.events(packed))

    def handleExpiredTimer(  # noqa: N802
        self,
        key: Any,
        timerValues: TimerValues,  # noqa: N803
        expiredTimerInfo: ExpiredTimerInfo,  # noqa: N803
    ) -> Iterator[Row]:
        """Do what one key has to do at this time."""
        at = expiredTimerInfo.getExpiryTimeInMs()
        yield from self._over(key, timerValues, lambda run: run.due(at), expired=at)

    def close(self) -> None:
        """Return when every letter of the task is stored for good; then count the task (P2)."""
        keyed, self._keyed = self._keyed, None
        if keyed is None:
            return
        try:
            keyed.work.flush()
            if self._slot is not None:
                self._slot.add([keyed.work.tally.entry()])
        finally:
            keyed.work.delivery.close()

    def _over(
        self,
        key: Any,
        times: TimerValues,
        work: Callable[[KeyRun], None],
        expired: int | None = None,
    ) -> Iterator[Row]:
        """Work on one key, and store what came of it: all of it or, where it raises, nothing."""
        if self._keyed is None:
            self._keyed = _begun(self._work)
        stored, now = self._memory.get(), times.getCurrentProcessingTimeInMs()
        raw = None if stored is None else bytes(stored[0])
        # Without timers Spark tells no time.
        now = now if now > 0 else int(time.time() * 1000)
        run = KeyRun(self._keyed, key[0] if isinstance(key, tuple) else key, raw, now)
        before = _times(run.memory)
        try:
            work(run)
        except StoppedError as stopped:
            raise self._keyed.work.stopped(stopped) from None
        self._store(run.memory, raw)
        after = _times(run.memory)
        # Spark removes the one that it has called for.
        for gone in before - after - {expired}:
            self._handle.deleteTimer(gone)
        for new in after - before:
            self._handle.registerTimer(new)
        for batch in run.batches:
            yield _Emitted(batch)

    def _store(self, memory: Memory, raw: bytes | None) -> None:
        if memory.empty:
            if raw is not None:
                self._memory.clear()
            return
        data = stored(memory)
        if data != raw:
            self._memory.update((data,))


def _begun(work: bytes) -> KeyedTask:
    plan: KeyedPlan = pickling.loads_on_worker(work)
    return KeyedTask(plan, Work.begin(plan.plan, Task.current(plan.plan.stop_marker)))


def _times(memory: Memory) -> set[int]:
    return {at for at in (memory.timer, memory.deadline) if at is not None}
