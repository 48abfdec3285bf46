"""The mailbox: how the entries of finished tasks reach the driver.

Entries have keys, so one that comes twice (a stage that ran again) overwrites.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar
from uuid import uuid4

import msgspec

from sparkguard.core.ledger import Entry
from sparkguard.driver.state import ENTRIES, State
from sparkguard.events import BATCH_FINISHED, COUNTS_LOST, log
from sparkguard.executor.entry_folder import DRIVEN, UNBATCHED, EntryFolder

if TYPE_CHECKING:
    from pyspark import Accumulator, SparkContext

KEPT_DAYS: Final = 30
"""What no process has settled for so long is removed: a monthly job still finds its last batch."""
_AT_ONCE = 16
"""Files read or removed side by side; on an object store each is one request."""

_One = TypeVar("_One")


class Mailbox(Protocol):
    """The way back for the workers' counts.

    Attributes:
        slot: travels to the workers; its ``add`` takes the entries of a finished task.
    """

    @property
    def slot(self) -> Any:
        """What a task puts its entries into."""
        ...

    def take(self) -> list[Entry]:
        """The entries that have come."""
        ...


class AccumulatorMailbox:
    """Entries by a Spark accumulator, which a classic session has.

    Spark applies the updates of a task once it has succeeded and before its job returns.
    """

    def __init__(self, context: SparkContext) -> None:
        from pyspark.accumulators import AccumulatorParam

        class Entries(AccumulatorParam[list[Entry]]):
            def zero(self, value: list[Entry]) -> list[Entry]:
                return []

            def addInPlace(self, value1: list[Entry], value2: list[Entry]) -> list[Entry]:  # noqa: N802
                value1.extend(value2)
                return value1

        self.slot: Accumulator[list[Entry]] = context.accumulator([], Entries())

    def take(self) -> list[Entry]:
        """Every entry that came since the last call."""
        arrived: list[Any] = self.slot.value
        count = len(arrived)
        taken = arrived[:count]
        # Spark's own thread may append meanwhile; deleting a prefix leaves what it adds.
        del arrived[:count]
        return taken


class FileMailbox:
    """Entries by small files in the state, for Spark Connect, which has no accumulators.

    A file stays until its entry is in a stored account; several processes may look.

    Args:
        senders: the guard from which this process got its own, and the one before it.

    Attributes:
        senders: they and this one: whose tasks a batch function's threads may have run.
    """

    def __init__(self, state: State, senders: Iterable[str] = ()) -> None:
        self._state = state
        self._owner = uuid4().hex[:12]
        self.senders = frozenset((*senders, self._owner))
        self._read: dict[str, Entry] = {}
        self._left: set[str] | None = None

    @property
    def slot(self) -> EntryFolder:
        """The folder that tasks write to."""
        return EntryFolder(self._state.entries, self._owner)

    def take(self) -> list[Entry]:
        """Every entry whose file stands, in the order in which they were written."""
        names = self._state.entry_names()
        self._read = {name: self._read[name] for name in names if name in self._read}
        return self._taken(names)

    def take_of(self, query_id: str) -> list[Entry]:
        """The same of one query, with what its batch function's own threads may have left."""
        frames = self._state.names(f"{ENTRIES}/{UNBATCHED}")
        strays = [name for name in frames if _owner(name) in self.senders]
        return self._taken(strays + self._state.names(f"{ENTRIES}/{query_id}"))

    def take_sent(self) -> list[Entry]:
        """The same of what this guard has sent out and no batch function settles."""
        names = self._state.entry_names()
        mine = {_folder(name) for name in names if _owner(name) == self._owner} - {UNBATCHED}
        return self._taken(
            name
            for name in names
            if not name.endswith(DRIVEN) and (_folder(name) in mine or _owner(name) == self._owner)
        )

    def wrote(self, entry: Entry) -> bool:
        """Whether the task was sent out by this guard, and no other one of the app."""
        return _owner(entry.carrier) == self._owner

    @property
    def left(self) -> set[str]:
        """Files that are counted and still stand, what an earlier process left among them."""
        if self._left is None:
            documents = map(self._state.load, self._state.names("ledger"))
            self._left = {
                name for document in documents if document for name in document.get("merged", ())
            }
            self.remove(())
        return self._left

    def remove(self, names: Iterable[str]) -> None:
        """Remove the files of entries that are in the state's accounts.

        One that cannot be removed now is read no more, and goes with the next.
        """
        self.left.update(names)
        tried = sorted(self.left)
        problems = list(filter(None, _each(self._delete, tried)))
        if problems:
            problem = f"{len(problems)} entries that are counted still stand: {problems[0]!r}"
            log(BATCH_FINISHED, level=logging.WARNING, problem=problem)

    def sweep(self) -> None:
        """Remove what nobody has settled for `KEPT_DAYS`: of queries and jobs that are gone."""
        oldest = f"{time.time_ns() - KEPT_DAYS * 86_400 * 10**9:020d}"
        try:
            old = [name for name in self._state.entry_names() if _file(name) < oldest]
            if old:
                self.remove(old)
        except Exception as error:
            # What cannot be swept is no reason to start nothing.
            problem = f"old entries stand: {type(error).__name__}: {error}"
        else:
            problem = f"{len(old)} entries that nobody settled for {KEPT_DAYS} days are removed"
            if not old:
                return
        log(COUNTS_LOST, level=logging.WARNING, problem=problem)

    def _taken(self, names: Iterable[str]) -> list[Entry]:
        wanted = sorted((name for name in names if name not in self.left), key=_file)
        new = [name for name in wanted if name not in self._read]
        self._read.update(
            (entry.carrier, entry) for entry in _each(self._load, new) if entry is not None
        )
        return [self._read[name] for name in wanted if name in self._read]

    def _load(self, name: str) -> Entry | None:
        document = self._state.load(name)
        # Another process may have merged it since the folder was listed.
        return None if document is None else replace(msgspec.convert(document, Entry), carrier=name)

    def _delete(self, name: str) -> Exception | None:
        self._read.pop(name, None)
        try:
            self._state.delete(name)
        except Exception as error:
            # The account is stored: whatever the store says now is no reason to fail its batch.
            return error
        self.left.discard(name)
        return None


def _each(work: Callable[[str], _One], names: Sequence[str]) -> list[_One]:
    if len(names) < 2:  # noqa: PLR2004
        return [work(name) for name in names]
    with ThreadPoolExecutor(min(_AT_ONCE, len(names))) as pool:
        return list(pool.map(work, names))


def _file(name: str) -> str:
    return name.rpartition("/")[2]


def _folder(name: str) -> str:
    return name.split("/")[-2]


def _owner(name: str) -> str:
    return _file(name).split("-")[1] if "-" in name else ""
