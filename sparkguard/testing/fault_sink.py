"""A sink that fails on command, or kills a process around the acknowledgement of another sink."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from sparkguard.core.letter import Letter
from sparkguard.errors import SinkError
from sparkguard.sinks.base import Sink, SinkTask, Writer

Point = Literal["write", "before_flush", "after_flush"]
Action = Literal["raise", "kill"]

_DEATH_SECONDS: Final = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultSink:
    """Wraps a sink and strikes once, at one point, over all workers and restarts.

    `before_flush` strikes when letters were written and none is acknowledged, `after_flush` when
    all are and the task does not know it yet. Flushes without letters do not count.

    Attributes:
        inner: the sink that stores the letters.
        marker: path of a file that the fault makes; while it is there, nothing strikes again.
        point: where to strike.
        action: ``raise`` a `SinkError`, or ``kill`` with SIGKILL.
        nth: strike at the n-th time that one writer comes to the point.
        pid_file: a file with the processes to kill, one number a line; None kills the worker.
    """

    inner: Sink
    marker: str
    point: Point = "before_flush"
    action: Action = "raise"
    nth: int = 1
    pid_file: str | None = None

    def open(self, task: SinkTask) -> Writer:
        """A writer around one of the inner sink."""
        return _FaultWriter(self, self.inner.open(task), task.name)

    def check(self, name: str, source_topics: frozenset[str]) -> None:
        """Whatever the inner sink checks."""
        self.inner.check(name, source_topics)

    def refuses(self, letter: Letter) -> str | None:
        """Whatever the inner sink refuses."""
        return self.inner.refuses(letter)

    @property
    def struck(self) -> bool:
        """Whether the fault happened."""
        return Path(self.marker).exists()

    def strike(self, name: str) -> None:
        """Do the damage, if nobody has yet.

        Raises:
            SinkError: if the action is to raise.
        """
        try:
            Path(self.marker).touch(exist_ok=False)
        except FileExistsError:
            return
        if self.action == "raise":
            msg = f"fails at {self.point!r} because a test told it to."
            raise SinkError(msg, sink=name)
        if self.pid_file is None:
            os.kill(os.getpid(), signal.SIGKILL)
            return
        for line in Path(self.pid_file).read_text(encoding="ascii").split():
            _kill(int(line))


class _FaultWriter:
    def __init__(self, sink: FaultSink, inner: Writer, name: str) -> None:
        self._sink = sink
        self._inner = inner
        self._name = name
        self._times = 0
        self._waiting = False

    def write(self, letter: Letter) -> None:
        self._reach("write")
        self._inner.write(letter)
        self._waiting = True

    def flush(self) -> None:
        if self._waiting:
            self._reach("before_flush")
        self._inner.flush()
        if self._waiting:
            self._reach("after_flush")
        self._waiting = False

    def close(self) -> None:
        self._inner.close()

    def _reach(self, point: Point) -> None:
        if point != self._sink.point:
            return
        self._times += 1
        if self._times == self._sink.nth:
            self._sink.strike(self._name)


def _kill(pid: int) -> None:
    """Kill a process and wait until it is gone: what follows must not happen in its lifetime."""
    wait = _waiter(pid)
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    wait()


def _waiter(pid: int) -> Callable[[], None]:
    if not hasattr(os, "pidfd_open"):  # only Linux tells when a stranger's process ends
        return lambda: None
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return lambda: None

    def wait() -> None:
        select.select([handle], [], [], _DEATH_SECONDS)
        os.close(handle)

    return wait
