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
    ValueState,
)

from sparkguard.core.versions import Memory, remembered, stored
from sparkguard.executor.keyed_plan import EMITTED, KeyedPlan
from sparkguard.executor.keyed_run import KeyRun
from sparkguard.executor.keyed_task import KeyedTask
from sparkguard.executor.task import StoppedError, Task
from sparkguard.executor.work import Work
from sparkguard.pickling import loads_on_worker, unpack

MEMORY: Final = "memory"
"""Name of the state variable, and of its only column."""

WAITING: Final = "waiting"
"""Likewise, of events that wait where a `ttl` would forget them with the state."""

_Emitted = Row(EMITTED)


class Processor(StatefulProcessor):
    """A stateful stage as Spark's stateful processor.

    Args:
        work: the pickled `KeyedPlan`.
        ttl: milliseconds; None for ever.
        slot: the way back for the task's counts.
        waits: events may wait for others.
    """

    def __init__(self, work: bytes, ttl: int | None, slot: Any, *, waits: bool = False) -> None:
        self._work = work
        self._ttl = ttl
        self._waits = waits
        self._slot = slot
        self._keyed: KeyedTask | None = None

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state; Spark calls this once on the driver too."""
        self._handle = handle
        self._memory = handle.getValueState(MEMORY, f"{MEMORY} binary", self._ttl)
        # What waits was counted nowhere yet: its own time decides about it, and no other.
        apart = self._waits and self._ttl is not None
        self._waiting = handle.getValueState(WAITING, f"{WAITING} binary", None) if apart else None

    def handleInputRows(  # noqa: N802 - the name is Spark's
        self,
        key: Any,
        rows: Iterator[Row],
        timerValues: TimerValues,  # noqa: N803
    ) -> Iterator[Row]:
        """Apply one key's events of the batch."""
        # Of a Row, taking one by name or place is slow.
        packed = [one for _, bundle in rows for one in unpack(bundle)]
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
        now = times.getCurrentProcessingTimeInMs()
        # Without timers Spark tells no time.
        now = now if now > 0 else int(time.time() * 1000)
        raw, memory = _read(self._memory)
        apart, waiting = (None, None) if self._waiting is None else _read(self._waiting)
        if waiting is not None:
            memory = memory or Memory()
            memory.waiting, memory.deadline = waiting.waiting, waiting.deadline
        run = KeyRun(self._keyed, key[0] if isinstance(key, tuple) else key, memory, now)
        before = _times(run.memory)
        try:
            work(run)
        except StoppedError as stopped:
            raise self._keyed.work.stopped(stopped) from None
        after, memory = _times(run.memory), run.memory
        if self._waiting is not None:
            _write(self._waiting, Memory(waiting=memory.waiting, deadline=memory.deadline), apart)
            memory = memory.copy()
            memory.waiting, memory.deadline = [], None
        _write(self._memory, memory, raw)
        # Spark removes the one that it has called for.
        for gone in before - after - {expired}:
            self._handle.deleteTimer(gone)
        for new in after - before:
            self._handle.registerTimer(new)
        for batch in run.batches:
            yield _Emitted(batch)


def _read(variable: ValueState) -> tuple[bytes | None, Memory | None]:
    found = variable.get()
    if found is None:
        return None, None
    raw = bytes(found[0])
    return raw, remembered(raw)


def _write(variable: ValueState, memory: Memory, raw: bytes | None) -> None:
    if memory.empty:
        if raw is not None:
            variable.clear()
        return
    data = stored(memory)
    if data != raw:
        variable.update((data,))


def _begun(work: bytes) -> KeyedTask:
    plan: KeyedPlan = loads_on_worker(work)
    return KeyedTask(plan, Work.begin(plan.plan, Task.current(plan.plan.stop_marker)))


def _times(memory: Memory) -> set[int]:
    return {at for at in (memory.timer, memory.deadline) if at is not None}
