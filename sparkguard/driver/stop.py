"""The stop: asked for by a signal, by the marker in the state, or by code.

A batch function holds the next batch at its entry: that it arrived proves that
the batch before it was committed, and nothing of the held one has run.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from sparkguard.driver.state import State

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_HOLD_MILLISECONDS = 24 * 3600 * 1000
_SLICE_MILLISECONDS = 200


class Stop:
    """Whether the guard's queries are to stop, and which of them hold a batch."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._asked = threading.Event()
        self._forced = threading.Event()
        self._held: set[str] = set()
        self.by = ""

    @property
    def requested(self) -> bool:
        """Whether a stop was asked for in this process."""
        return self._asked.is_set()

    def request(self, by: str) -> None:
        """Ask for a stop; safe in a signal handler."""
        self.by = self.by or by
        self._asked.set()

    def force(self) -> None:
        """Ask for a stop at once, in the middle of a batch if need be: it will come again."""
        self._forced.set()

    @property
    def forced(self) -> bool:
        """Whether the stop may not wait for the end of a batch."""
        return self._forced.is_set()

    def wait_forced(self, seconds: float) -> bool:
        """Wait until the stop is forced, at most so long."""
        return self._forced.wait(seconds)

    def wait(self, seconds: float) -> bool:
        """Wait until a stop is asked for, at most so long."""
        return self._asked.wait(seconds)

    def look(self) -> bool:
        """Whether a stop is asked for here or by the marker in the state."""
        if not self.requested and self._state.stop_requested():
            self.request("the stop marker")
        return self.requested

    def tell_workers(self) -> None:
        """Set the marker, so that workers end their waits."""
        self._state.request_stop()

    def reset(self) -> None:
        """Forget everything; a new run starts."""
        self._asked.clear()
        self._forced.clear()
        self._held.clear()
        self.by = ""
        self._state.clear_stop()

    def holds(self, query_id: str) -> bool:
        """Whether this query waits at the entry of a batch."""
        return query_id in self._held

    def gate(self, batch: DataFrame, query_id: str | None) -> None:
        """Hold a batch at its entry while a stop is asked for.

        The wait happens in the JVM, on the query's own thread: stopping the query
        interrupts it, and Spark then sees a stop and no failure.
        """
        if not self.requested or query_id is None:
            return
        self._held.add(query_id)
        _sleep(batch, _HOLD_MILLISECONDS)

    def pause(self, batch: DataFrame, seconds: float) -> bool:
        """Wait between two tries of a batch; whether a stop was asked for meanwhile.

        Stopping the query ends the wait at once, with Spark's InterruptedException.
        """
        left = int(seconds * 1000)
        while left > 0 and not self.requested:
            _sleep(batch, min(left, _SLICE_MILLISECONDS))
            left -= _SLICE_MILLISECONDS
        return self.requested


def _sleep(batch: DataFrame, milliseconds: int) -> None:
    jvm: Any = batch.sparkSession.sparkContext._jvm  # noqa: SLF001 - the JVM has no public door
    jvm.java.lang.Thread.sleep(milliseconds)
