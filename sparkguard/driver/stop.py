"""The stop: asked for by a signal, by the marker in the state, or by code.

A batch function holds the next batch at its entry: that it arrived proves that
the batch before it was committed, and nothing of the held one has run.
"""

from __future__ import annotations

import time
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from sparkguard.driver import trouble
from sparkguard.driver.connect import is_connect
from sparkguard.driver.state import State

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SLICE_MILLISECONDS = 200
_SHOWN = 200


class StoppedBatchError(Exception):
    """A batch ended because its query is being stopped; it comes again.

    Spark tells a stop from a failure by words in the text that comes back from Python
    (`StreamExecution.PROXY_ERROR`), with a regular expression that overflows the stack
    on a long one. So this says the words, says them last, and shows little else.
    """

    def __init__(self, error: BaseException) -> None:
        self.error = error
        seen = trouble.text_of(error).partition("\n")[0][:_SHOWN]
        super().__init__(
            f"The query is being stopped; its batch comes again. ({type(error).__name__}: {seen}) "
            "[py4j.protocol.Py4JJavaError: An error occurred while calling the batch function: "
            "java.lang.InterruptedException]"
        )


class Stop:
    """Whether the guard's queries are to stop, and which of them hold a batch."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._asked = self._forced = self._marked = False
        # Not a threading.Event: its lock may be held by the thread that the signal interrupts.
        self._wake: SimpleQueue[None] = SimpleQueue()
        self._held: set[str] = set()
        self._followed: dict[str, Any] = {}
        self.by = ""

    def __reduce__(self) -> tuple[Any, ...]:
        return Stop, (self._state,)

    @property
    def requested(self) -> bool:
        """Whether a stop was asked for in this process."""
        return self._asked

    def request(self, by: str) -> None:
        """Ask for a stop; safe in a signal handler."""
        self.by = self.by or by
        self._asked = True
        self._wake.put(None)

    def force(self) -> None:
        """Ask for a stop at once, in the middle of a batch if need be: it will come again."""
        self._forced = True
        self._wake.put(None)

    @property
    def forced(self) -> bool:
        """Whether the stop may not wait for the end of a batch."""
        return self._forced

    def wait_forced(self, seconds: float) -> bool:
        """Wait until the stop is forced, at most so long."""
        if not self._forced:
            self._sleep(seconds)
        return self._forced

    def wait(self, seconds: float) -> bool:
        """Wait until a stop is asked for, at most so long."""
        if not self._asked:
            self._sleep(seconds)
        return self._asked

    def _sleep(self, seconds: float) -> None:
        try:
            self._wake.get(timeout=seconds)
        except Empty:
            return

    def look(self) -> bool:
        """Whether a stop is asked for here or by the marker in the state."""
        if not self._asked and self._marker_is_set():
            self.request("the stop marker")
            self._marked = True
        return self._asked

    def _marker_is_set(self) -> bool:
        try:
            return self._state.stop_requested()
        except Exception:
            # A state that cannot be read now asks for nothing; the next look is soon.
            return False

    def tell_workers(self) -> None:
        """Set the marker, so that workers end their waits."""
        if not self._state.stop_requested():
            self._marked = True
            self._state.request_stop()

    def reset(self) -> None:
        """Forget everything; a new run starts.

        Raises:
            ConfigError: the state cannot be written.
        """
        self._state.check()
        self._state.clear_stop()
        self._forget()

    def finish(self) -> None:
        """Everything has stopped: let go of what a later query would stumble over.

        A marker that this run did not see stays; a new run removes it.
        """
        if self._marked:
            self._state.clear_stop()
        self._forget()

    def _forget(self) -> None:
        self._asked = self._forced = self._marked = False
        self._wake = SimpleQueue()
        self._held.clear()
        self._followed.clear()
        self.by = ""

    def follow(self, query: Any) -> None:
        """Know this query, to tell a batch that failed from one that is being stopped."""
        self._followed[str(query.id)] = query

    def ended(self, query_id: str | None) -> bool | None:
        """Whether somebody has stopped this query; None if nobody can tell."""
        query = self._followed.get(query_id or "")
        try:
            return None if query is None else not query.isActive
        except Exception:
            # The JVM does not answer, perhaps because this thread was interrupted.
            return None

    def holds(self, query_id: str) -> bool:
        """Whether this query waits at the entry of a batch."""
        return query_id in self._held

    def gate(self, batch: DataFrame, query_id: str | None) -> None:
        """Hold a batch at its entry while a stop is asked for.

        The wait happens in the JVM, on the query's own thread: stopping the query
        interrupts it, and Spark then sees a stop and no failure.

        Raises:
            StoppedBatchError: the query is being stopped.
        """
        if is_connect(batch.sparkSession):
            # There the query's own thread is out of reach, and a wait here would block its stop.
            return
        while self._asked and query_id is not None:
            self._held.add(query_id)
            _sleep(batch, _SLICE_MILLISECONDS)

    def pause(self, batch: DataFrame, seconds: float) -> bool:
        """Wait between two tries of a batch; whether a stop was asked for meanwhile.

        Raises:
            StoppedBatchError: the query is being stopped, which ends the wait at once.
        """
        left = int(seconds * 1000)
        while left > 0 and not self._asked:
            if is_connect(batch.sparkSession):
                # A stop that is asked for in the client is known here by its marker.
                time.sleep(min(left, _SLICE_MILLISECONDS) / 1000)
                self.look()
            else:
                _sleep(batch, min(left, _SLICE_MILLISECONDS))
            left -= _SLICE_MILLISECONDS
        return self._asked


def _sleep(batch: DataFrame, milliseconds: int) -> None:
    jvm: Any = batch.sparkSession.sparkContext._jvm  # noqa: SLF001 - the JVM has no public door
    try:
        jvm.java.lang.Thread.sleep(milliseconds)
    except Exception as error:
        if trouble.read(error).stopped:
            raise StoppedBatchError(error) from None
        raise
