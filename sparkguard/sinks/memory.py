"""memory: letters in a list of the driver's process, for tests on one machine.

Workers are other processes. The first time a sink travels, its process starts to listen on a
loopback port, and the travelling sink takes the address and a key along. The letters end with
the process.
"""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener
from typing import Any, Final
from uuid import uuid4

from sparkguard.core.letter import Letter
from sparkguard.errors import SinkError
from sparkguard.sinks.base import SinkTask, Writer

BUFFER_LETTERS: Final = 1_000
"""A writer sends when it holds as many."""


class _Store:
    """The letters, by id, of the process that made it."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._letters: dict[str, Letter] = {}
        self._lock = threading.Lock()
        self._authkey = secrets.token_bytes(32)
        self._listener: Listener | None = None

    def add(self, letters: Iterable[Letter]) -> None:
        with self._lock:
            for letter in letters:
                self._letters.setdefault(letter.id, letter)

    def all(self) -> list[Letter]:
        with self._lock:
            return list(self._letters.values())

    def clear(self) -> None:
        with self._lock:
            self._letters.clear()

    def door(self) -> _Door:
        """Where other processes find this store; opened on first use."""
        with self._lock:
            if self._listener is None:
                self._listener = Listener(("127.0.0.1", 0), authkey=self._authkey)
                threading.Thread(target=self._serve, args=(self._listener,), daemon=True).start()
            host, port = self._listener.address
            return str(host), int(port), self._authkey

    def _serve(self, listener: Listener) -> None:
        while True:
            # A client that goes away in the middle, or has another key, is its own trouble.
            with suppress(OSError, EOFError, AuthenticationError):
                connection = listener.accept()
                threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: Connection[Any, Any]) -> None:
        with connection, suppress(EOFError, OSError):
            while True:
                letters: list[Letter] | None = connection.recv()
                if letters is None:
                    connection.send(self.all())
                else:
                    self.add(letters)
                    connection.send(len(letters))


_Door = tuple[str, int, bytes]
_STORES: dict[str, _Store] = {}
_DOORS: dict[str, _Door] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySink:
    """Keeps letters in the memory of the process that made the sink.

    For classic sessions whose workers run on the driver's machine. What is kept is not bounded.

    Attributes:
        store: names the list; made up if not given. Sinks of one name share one list.
    """

    store: str = field(default_factory=lambda: uuid4().hex)

    def __post_init__(self) -> None:
        _STORES.setdefault(self.store, _Store())

    def __reduce__(self) -> tuple[Any, ...]:
        own = _own(self.store)
        return _arrive, (self.store, own.door() if own else _DOORS[self.store])

    @property
    def letters(self) -> list[Letter]:
        """The letters stored so far, each id once, in the order of arrival."""
        own = _own(self.store)
        if own is not None:
            return own.all()
        with _connect(self.store) as connection:
            connection.send(None)
            found: list[Letter] = connection.recv()
        return found

    def clear(self) -> None:
        """Forget the letters; only where the sink was made."""
        _STORES[self.store].clear()

    def open(self, task: SinkTask) -> Writer:
        """A writer for one task; connects when it first has something to send."""
        return MemoryWriter(self.store, task.name)

    def check(self, name: str, source_topics: frozenset[str]) -> None:
        """Nothing can be wrong before a worker tries."""

    def refuses(self, letter: Letter) -> str | None:
        """Refuse nothing: no query reads from here."""
        del letter
        return None


class MemoryWriter:
    """Sends letters to the process that keeps them, and waits for its answer."""

    def __init__(self, store: str, name: str) -> None:
        self._store = store
        self._name = name
        self._letters: list[Letter] = []
        self._connection: Connection[Any, Any] | None = None

    def write(self, letter: Letter) -> None:
        """Take a letter; a thousand are sent at once."""
        self._letters.append(letter)
        if len(self._letters) >= BUFFER_LETTERS:
            self.flush()

    def flush(self) -> None:
        """Return when the other process has the letters."""
        if not self._letters:
            return
        own = _own(self._store)
        if own is not None:
            own.add(self._letters)
        else:
            self._send()
        self._letters = []

    def close(self) -> None:
        """Drop what was not flushed."""
        self._letters = []
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _send(self) -> None:
        try:
            if self._connection is None:
                self._connection = _connect(self._store)
            self._connection.send(self._letters)
            self._connection.recv()
        except (OSError, EOFError, AuthenticationError) as error:
            msg = f"the process that keeps the letters does not answer: {error}."
            raise SinkError(msg, sink=self._name) from error


def _own(store: str) -> _Store | None:
    found = _STORES.get(store)
    # A forked child has a copy that nobody would read.
    return found if found is not None and found.pid == os.getpid() else None


def _connect(store: str) -> Connection[Any, Any]:
    if store not in _DOORS:
        msg = "a forked process must get the memory sink by pickle"
        raise OSError(msg)
    host, port, authkey = _DOORS[store]
    return Client((host, port), authkey=authkey)


def _arrive(store: str, door: _Door) -> MemorySink:
    if _own(store) is None:
        _DOORS[store] = door
    sink: MemorySink = object.__new__(MemorySink)
    object.__setattr__(sink, "store", store)
    return sink
