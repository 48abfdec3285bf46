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


class Supervisor:
    """Runs one or more queries until they end, fail for good or are asked to stop."""

    def __init__(self, runs: Sequence[Run], stop: Stop, clock: Clock, *, grace: float) -> None:
        self._runs = list(runs)
        self._stop = stop
        self._clock = clock
        self._grace = grace

    def run(self) -> None:
        """Block until every query has ended.

        Raises:
            RestartLimitError: a restart limit is used up; the last cause is chained.
            StageFailedError: a guarded stage failed for good.
            Exception: what else ended a query for good.
        """
        self._stop.reset()
        with _signals(self._stop):
            try:
                self._watch()
            finally:
                self._end()

    def _watch(self) -> None:
        looks = 0
        while not all(run.done for run in self._runs):
            for run in self._runs:
                if not run.done:
                    run.step()
            looks += 1
            if self._stop.wait(_LOOK_SECONDS):
                return
            if looks % _MARKER_EVERY == 0 and self._stop.look():
                return

    def _end(self) -> None:
        """Stop what still runs, between two batches; a second signal forces."""
        running = [run for run in self._runs if run.active]
        if not running:
            return
        self._stop.request("a query that failed for good")
        log(STOP_REQUESTED, by=self._stop.by)
        self._stop.tell_workers()
        until = self._clock.time() + self._grace
        while running:
            force = self._clock.time() >= until or self._stop.forced
            running = [run for run in running if not run.end(force=force)]
            if running:
                self._stop.wait_forced(_LOOK_SECONDS / 2)


@contextmanager
def _signals(stop: Stop) -> Iterator[None]:
    """SIGTERM and SIGINT ask for a stop while the block runs; the second one forces."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    names = (signal.SIGTERM, signal.SIGINT)

    def ask(number: int, _frame: Any) -> None:
        if stop.requested:
            stop.force()
        stop.request(signal.Signals(number).name)

    before = {number: signal.signal(number, ask) for number in names}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
