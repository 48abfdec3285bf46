"""The child: a forked copy of the worker, in which a function may crash without ending the task.

It answers questions until its pipe is closed, and ends without running anybody's clean-up: what it
shares with the worker is the worker's.
"""

from __future__ import annotations

import ctypes
import faulthandler
import mmap
import os
import resource
import signal
import struct
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import IO, Any, Final

from sparkguard.executor.lane import Lane

_SLICE_SECONDS = 0.5
_PATIENCE = 5.0
_STACK_BYTES = 100_000
_PR_SET_PDEATHSIG: Final = 1

Ask = Callable[[Any], Any]


class Note:
    """What a child works on, for its parent to read once it is dead.

    In memory that both share: a process that dies of a signal says nothing any more.

    Attributes:
        place, row: of the step and, within the rows it was given, of the record; below zero
            outside of every step, and where a step has all rows at once.
    """

    _PAIR = struct.Struct("<ii")

    def __init__(self) -> None:
        self._shared = mmap.mmap(-1, self._PAIR.size)
        self.at(-1)

    def at(self, place: int, row: int = -1) -> None:
        """Write down what comes next."""
        self._PAIR.pack_into(self._shared, 0, place, row)

    def over(self, place: int, lane: Lane) -> Iterator[Any]:
        """The lane's values, each noted before it is given; what raises in between ends it not."""

        def noted(row: int, value: Any) -> Any:
            self.at(place, row)
            return value

        return map(noted, lane.rows(), lane.values)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Work of our own: who dies of it is no record."""
        before = self.place, self.row
        self.at(-1)
        yield
        self.at(*before)

    @property
    def place(self) -> int:
        """The step's."""
        return int(self._PAIR.unpack_from(self._shared)[0])

    @property
    def row(self) -> int:
        """The record's."""
        return int(self._PAIR.unpack_from(self._shared)[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """A child ended without an answer.

    Attributes:
        how: by which signal or with which exit code.
        stack: what its functions were at, as far as it could still say.
    """

    how: str
    stack: str = ""


class Child:
    """One forked process.

    Args:
        serve: runs in it with its end of the pipe, and with the file that takes its last words.
    """

    def __init__(self, serve: Callable[[Connection[Any, Any], IO[bytes]], None]) -> None:
        self._pipe, theirs = Pipe()
        self._last_words = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the child
        # What is buffered here would be printed by both.
        _print_all()
        _warn_of_threads()
        parent = os.getpid()
        self._pid = _fork()
        if self._pid == 0:
            code = 1
            try:
                self._pipe.close()
                _prepare(parent, self._last_words)
                serve(theirs, self._last_words)
                code = 0
            except BaseException:
                # Nothing may go on above the fork: that would be a second worker on one socket.
                traceback.print_exc()
            finally:
                try:
                    _print_all()
                finally:
                    os._exit(code)
        theirs.close()
        self._code: int | None = None

    def ask(self, question: Any) -> Any:
        """The child's answer, or its `Death`."""
        if self._ended():
            # What it has started may hold the pipe open, and read nothing.
            return self._death()
        try:
            self._pipe.send(question)
            while not self._pipe.poll(_SLICE_SECONDS):
                # A process that the functions started may hold the pipe open.
                if self._ended() and not self._pipe.poll(0):
                    return self._death()
            return self._pipe.recv()
        except (EOFError, OSError):
            return self._death()

    def end(self) -> None:
        """Let it go: it ends when it finds the pipe closed, else it is killed."""
        self._pipe.close()
        self._wait()
        self._last_words.close()

    def _death(self) -> Death:
        self._wait()
        self._last_words.seek(0)
        said = self._last_words.read(_STACK_BYTES).decode("utf-8", "replace").strip()
        # Of several threads faulthandler names the main one last; behind it may stand more.
        stacks = [part for part in said.split("\n\n") if "(most recent call first)" in part]
        return Death(how=_how(self._code, said), stack=stacks[-1] if stacks else "")

    def _wait(self) -> None:
        until = time.monotonic() + _PATIENCE
        while not self._ended():
            if time.monotonic() > until:
                os.kill(self._pid, signal.SIGKILL)
            time.sleep(0.001)

    def _ended(self) -> bool:
        if self._code is None:
            try:
                pid, status = os.waitpid(self._pid, os.WNOHANG)
            except ChildProcessError:
                # The functions asked the system to forget children: how it ended is not known.
                self._code = 0
            else:
                self._code = os.waitstatus_to_exitcode(status) if pid else None
        return self._code is not None


def _fork() -> int:
    with warnings.catch_warnings():
        # Threads do not live on in the child. Arrow knows; of the user's own it is said.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _print_all() -> None:
    with suppress(Exception):  # functions may have closed or replaced them
        sys.stdout.flush()
        sys.stderr.flush()


_WARNED = False


def _warn_of_threads() -> None:
    global _WARNED  # noqa: PLW0603 - once for a worker is enough
    if _WARNED:
        return
    others = [one.name for one in threading.enumerate() if one is not threading.current_thread()]
    if others:
        _WARNED = True
        names = ", ".join(others[:5])
        sys.stderr.write(
            f"Functions run in a child now, where these threads are not: {names}. One that waits "
            "for them waits for ever: set record_timeout, or spark.python.worker.reuse=false.\n"
        )


def _prepare(parent: int, last_words: IO[bytes]) -> None:
    """Die with the parent and before it, and leave a stack instead of a core dump."""
    with suppress(AttributeError, OSError):
        # Linux; elsewhere a child whose parent was killed ends once it has an answer.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    with suppress(OSError):
        # Where memory is short it is this process that the kernel is to choose.
        Path("/proc/self/oom_score_adj").write_text("1000")
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    faulthandler.enable(file=last_words, all_threads=False)


def _how(code: int | None, stack: str) -> str:
    if code is None or code >= 0:
        hung = stack.startswith("Timeout")
        return "hung, and did not react" if hung else f"exited with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        # A real-time signal has no name.
        return f"was killed by signal {-code}"
