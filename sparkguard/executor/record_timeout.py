"""The record timeout: a value that takes too long is interrupted where it is.

A thread looks now and then how far the list of results has grown, which costs a record nothing. A
value that does not come is interrupted by a signal to the main thread, whose handler raises if the
very same value is still awaited. A function that reacts to no signal, because it holds the
interpreter, is met by faulthandler's own thread, which ends the process.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from types import FrameType, TracebackType
from typing import Any, Final, Self

from sparkguard.errors import RecordTimeoutError
from sparkguard.executor.plan import Step

SIGNAL: Final = getattr(signal, "SIGRTMAX", signal.SIGUSR2)
"""Of the system's signals the one that is used least."""

_LOOKS = 8
_SHORTEST, _LONGEST = 0.005, 1.0
_FRAMES = 30


@dataclass(slots=True, eq=False)
class _Call:
    """Values on their way through one stage; `out` grows by each."""

    place: int
    out: list[Any]


class RecordTimeout:
    """Bounds the values of one task, while the block runs.

    Args:
        steps: with the seconds that each allows for one value.
        dump: number of the file that takes the stacks when the process is ended.
    """

    def __init__(self, steps: Sequence[Step], dump: int = 2) -> None:
        self._names = [step.name for step in steps]
        self._limits = [step.policy.record_timeout for step in steps]
        self._dump = dump
        self._call: _Call | None = None
        self._aim: tuple[_Call, int] | None = None
        self._lock = threading.Lock()
        self._before: Any = None
        self._signals = threading.current_thread() is threading.main_thread()
        self._thread_id = threading.get_ident()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="record_timeout", daemon=True)

    def __enter__(self) -> Self:
        if self._signals:
            self._before = signal.signal(SIGNAL, self._met)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()
        _disarm()
        if self._signals and signal.getsignal(SIGNAL) == self._met:
            signal.signal(SIGNAL, self._before)

    def fill(self, place: int, out: list[Any], iterator: Iterator[Any]) -> None:
        """Extend the list, each value within its time.

        Raises:
            RecordTimeoutError: a value took longer.
            BaseException: what the iterator raises.
        """
        limit = self._limits[place]
        if limit is None:
            out.extend(iterator)
            return
        try:
            with self._lock:
                # Before the functions run: one that holds the interpreter lets no thread do it.
                self._call = _Call(place, out)
                self._arm(limit)
            _extend(out, iterator, limit / _LOOKS)
        finally:
            try:
                self._call = None
            finally:
                # Once more: the signal may come in front of it.
                self._call = None
                with self._lock:
                    _disarm()

    def one(self, place: int, iterator: Iterator[Any]) -> Any:
        """The next value, within its time; StopIteration if there is none."""
        out: list[Any] = []
        self.fill(place, out, iterator)
        return next(iter(out))

    def bounded(self, place: int, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """The function, each call of it within the time of one value."""
        if self._limits[place] is None:
            return function
        return lambda value: self.one(place, map(function, (value,)))

    def _met(self, _number: int, _frame: FrameType | None) -> None:
        """Raise in the main thread, if what was aimed at is still there."""
        call, aim, self._aim = self._call, self._aim, None
        if call is not None and aim is not None and aim[0] is call and aim[1] == len(call.out):
            raise RecordTimeoutError(self._names[call.place], self._limits[call.place] or 0.0)

    # --- in the watching thread -------------------------------------------------------------

    def _watch(self) -> None:
        shortest = min(limit for limit in self._limits if limit is not None)
        wait = min(max(shortest / _LOOKS, _SHORTEST), _LONGEST)
        call: _Call | None = None
        grown, since, struck = 0, time.monotonic(), 0
        while not self._over.wait(wait):
            last, before = call, grown
            with self._lock:
                call, now = self._call, time.monotonic()
                grown = len(call.out) if call is not None else 0
                limit = self._limits[call.place] if call is not None else None
                if moved := call is not last or grown != before:
                    self._arm(limit)
            if moved:
                since, struck = now, 0
            elif call is not None and limit is not None and now - since >= limit * (struck + 1):
                struck += 1
                self._strike(call, grown, now - since)

    def _arm(self, limit: float | None) -> None:
        """End the process if no next value is heard of for long; without a limit, never."""
        if limit is None:
            _disarm()
        else:
            faulthandler.dump_traceback_later(2 * limit + 1, exit=True, file=self._dump)

    def _strike(self, call: _Call, grown: int, seconds: float) -> None:
        frame = sys._current_frames().get(self._thread_id)  # noqa: SLF001 - the documented way
        stack = traceback.extract_stack(frame, limit=_FRAMES)
        ours = [at for at, one in enumerate(stack) if one.filename == __file__]
        lines = "".join(traceback.format_list(stack[ours[-1] + 1 if ours else 0 :]))
        name = self._names[call.place]
        sys.stderr.write(f"Stage {name!r} is at one value for {seconds:.1f} s:\n{lines}")
        self._aim = call, grown
        if self._signals:
            signal.pthread_kill(self._thread_id, SIGNAL)


def _extend(out: list[Any], iterator: Iterator[Any], seconds: float) -> None:
    """Extend the list by parts that take about so long.

    Functions of C let no other thread run, so the watching one could not see that they get on.
    """
    size = 1
    while True:
        before, began = len(out), time.monotonic()
        out.extend(islice(iterator, size))
        if len(out) - before < size:
            return
        size = 2 * size if time.monotonic() - began < seconds / 2 else max(1, size // 2)


def _disarm() -> None:
    """Take faulthandler's clock back, and leave it as Spark's own setting has it."""
    faulthandler.cancel_dump_traceback_later()
    every = os.environ.get("PYTHON_TRACEBACK_DUMP_INTERVAL_SECONDS", "")
    if every.isdecimal() and int(every):
        faulthandler.dump_traceback_later(int(every), repeat=True)
