"""The supervisor: runs queries, starts them again within their limit, stops them between batches.

Restarts answer transient causes and `Restart` outcomes only. A query that fails
for another reason, or whose limit is used up, ends the run: the others are
stopped between two batches first, then the cause is raised.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sparkguard.driver.clock import Clock
from sparkguard.driver.run import Run
from sparkguard.driver.stop import Stop
from sparkguard.events import STOP_REQUESTED, log

_LOOK_SECONDS = 0.2
_MARKER_EVERY = 5
_PATIENCE = 10.0
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Supervisor:
    """Runs one or more queries until they end, fail for good or are asked to stop.

    Args:
        grace: seconds that a running batch has to end when a stop is asked for; what
            takes longer is cut off, and after ten seconds more no longer waited for.
    """

    def __init__(self, runs: Sequence[Run], stop: Stop, clock: Clock, *, grace: float) -> None:
        self._runs = list(runs)
        self._stop = stop
        self._clock = clock
        self._grace = grace

    def run(self) -> None:
        """Block until every query has ended.

        Raises:
            ConfigError: the state cannot be written; nothing was started.
            RestartLimitError: a restart limit is used up; the last cause is chained.
            StageFailedError: a guarded stage failed for good.
            Exception: what else ended a query for good.
        """
        self._stop.reset()
        with _signals(self._stop) as hold:
            try:
                self._watch(hold)
            except KeyboardInterrupt:
                # SIGINT came before it was taken back from a session that `build` made.
                self._stop.request(signal.SIGINT.name)
            finally:
                self._end()
        error = next((run.error for run in self._runs if run.error is not None), None)
        if error is not None:
            raise error

    def _watch(self, hold: Any) -> None:
        looks = 0
        while not all(run.done for run in self._runs):
            for run in self._runs:
                if not run.done and not self._stop.requested:
                    run.step()
                    hold()
            looks += 1
            if self._clock.wait(self._stop.wait, _LOOK_SECONDS):
                return
            if looks % _MARKER_EVERY == 0 and self._stop.look():
                return

    def _end(self) -> None:
        """Stop what still runs, between two batches; a second signal forces."""
        running = [run for run in self._runs if run.active]
        if running:
            self._stop.request("a query that failed for good")
            log(STOP_REQUESTED, by=self._stop.by, marker=self._mark())
            running = self._wait_for(running)
        for run in running:
            run.abandon()
        if not running:
            self._let_go()

    def _wait_for(self, running: list[Run]) -> list[Run]:
        """The queries that did not stop within the grace and the patience."""
        until = self._clock.monotonic() + self._grace
        patience: float | None = None
        while True:
            now = self._clock.monotonic()
            force = now >= until or self._stop.forced
            if force and patience is None:
                patience = now + _PATIENCE
            running = [run for run in running if not run.end(force=force)]
            if not running or (patience is not None and now >= patience):
                return running
            self._clock.wait(self._stop.wait_forced, _LOOK_SECONDS / 2)

    def _mark(self) -> str | None:
        try:
            self._stop.tell_workers()
        except Exception as error:
            # Then workers that wait learn of the stop when Spark closes their sockets.
            return f"not set: {type(error).__name__}: {error}"
        return None

    def _let_go(self) -> None:
        try:
            self._stop.finish()
        except Exception as error:
            log(STOP_REQUESTED, by=self._stop.by, marker=f"not removed: {type(error).__name__}")


@contextmanager
def _signals(stop: Stop) -> Iterator[Any]:
    """SIGTERM and SIGINT ask for a stop while the block runs; the second one forces.

    Gives a function that takes the signals back: Spark claims SIGINT whenever a
    session is made, and a `build` may make one.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    asked = False
    before: dict[signal.Signals, Any] = {}

    def ask(number: int, _frame: Any) -> None:
        nonlocal asked
        if asked:
            stop.force()
        asked = True
        stop.request(signal.Signals(number).name)

    def hold() -> None:
        for number in _SIGNALS:
            # A handler that C code has set is none that Python could set again.
            found = signal.getsignal(number) or signal.SIG_DFL
            if found is not ask:
                before[number] = found
                signal.signal(number, ask)

    hold()
    try:
        yield hold
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) is ask:
                signal.signal(number, handler)
