"""Lock: one redrive of an app at a time, by a document in its state.

Locally it is made by a link, which only one can make. An object store has no such thing here: two
that begin within the same moment may both go on, until one looks again, before its next chunk.
"""

from __future__ import annotations

import functools
import getpass
import json
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final, ParamSpec, TypeVar
from uuid import uuid4

import pyarrow as pa

from sparkguard import filesystem
from sparkguard.driver.state import State
from sparkguard.errors import LettersError

_NAME: Final = "redriving.json"

P = ParamSpec("P")
T = TypeVar("T")


def on_state(step: Callable[P, T]) -> Callable[P, T]:
    """Turn what a filesystem or Parquet raises, where only the state is touched, into a sentence.

    Raises:
        LettersError: the state cannot be read or written.
    """

    @functools.wraps(step)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return step(*args, **kwargs)
        except (OSError, pa.ArrowException) as error:
            told = filesystem.without_password(str(error))
            raise LettersError(f"The state cannot be read or written: {told}.") from error

    return run


def user() -> str:
    """Who runs this process, as far as the machine knows."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""


class Lock:
    """Held by this process until it is given up."""

    def __init__(self, path: str) -> None:
        self._fs, self._path = filesystem.resolve(path)
        self.holder: dict[str, Any] = {
            "token": uuid4().hex,
            "by": user(),
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "since": datetime.now(UTC).isoformat(timespec="seconds"),
        }

    @on_state
    def take(self, *, take_over: bool) -> None:
        """Take it, from a process of this machine that is gone too.

        Raises:
            LettersError: another redrive holds it; names it.
        """
        data = json.dumps(self.holder).encode()
        while not filesystem.create(self._fs, self._path, data):
            held = self._held()
            if held is not None and not (take_over or _is_gone(held)):
                since = f"since {held.get('since')}"
                raise LettersError(
                    f"Another redrive of this app is running: {_named(held)}, {since}. Wait for "
                    "it; if that process is gone, say --take-over."
                )
            if held is not None:
                self._remove(held)

    @on_state
    def check(self) -> None:
        """Look whether it is still held.

        Raises:
            LettersError: another redrive took it over.
        """
        held = self._held() or {}
        if held.get("token") != self.holder["token"]:
            raise LettersError(f"Another redrive took over: {_named(held)}. This one ends.")

    @on_state
    def give_up(self) -> None:
        """Let others take it; does nothing where another one has."""
        if (self._held() or {}).get("token") == self.holder["token"]:
            filesystem.delete(self._fs, self._path)

    def _held(self) -> dict[str, Any] | None:
        data = filesystem.read(self._fs, self._path)
        return None if data is None else _read(data)

    def _remove(self, held: dict[str, Any]) -> None:
        """Remove it unless another one took it meanwhile."""
        aside = filesystem.temporary_name(self._path)
        try:
            self._fs.move(self._path, aside)
        except FileNotFoundError:
            return
        moved = filesystem.read(self._fs, aside) or b"{}"
        if _read(moved).get("token") != held.get("token"):
            filesystem.create(self._fs, self._path, moved)
        filesystem.delete(self._fs, aside)


@contextmanager
def only_one(state: str, *, take_over: bool = False) -> Iterator[Lock]:
    """Hold the lock of the redrives of a state.

    Raises:
        LettersError: as `Lock.take`.
    """
    lock = Lock(filesystem.join(State(state).path, _NAME))
    lock.take(take_over=take_over)
    try:
        yield lock
    finally:
        lock.give_up()


def _read(data: bytes) -> dict[str, Any]:
    """A holder; empty where the file is damaged: then somebody has it, and nobody knows who."""
    try:
        held = json.loads(data)
    except ValueError:
        return {}
    return held if isinstance(held, dict) else {}


def _named(held: dict[str, Any]) -> str:
    return f"{held.get('by') or 'somebody'} on {held.get('host')}, process {held.get('pid')}"


def _is_gone(held: dict[str, Any]) -> bool:
    if held.get("host") != socket.gethostname():
        return False
    try:
        os.kill(int(held["pid"]), 0)
    except ProcessLookupError:
        return True
    except (PermissionError, KeyError, TypeError, ValueError, OverflowError):
        return False
    return False
