"""The mailbox: how the entries of finished tasks reach the driver.

Entries have keys, so one that comes twice (a stage that ran again) overwrites.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol
from uuid import uuid4

import msgspec

from sparkguard.core.ledger import Entry
from sparkguard.driver.state import ENTRIES, State
from sparkguard.executor.entry_folder import EntryFolder

if TYPE_CHECKING:
    from pyspark import Accumulator, SparkContext


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
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._owner = uuid4().hex[:12]
        self._read: dict[str, Entry] = {}
        self._left: frozenset[str] | None = None

    @property
    def slot(self) -> EntryFolder:
        """The folder that tasks write to."""
        return EntryFolder(self._state.entries, self._owner)

    def take(self) -> list[Entry]:
        """Every entry whose file stands, in the order in which they were written."""
        names = [name for name in self._state.names(ENTRIES) if name not in self._done()]
        self._read = {name: self._read.get(name) or self._load(name) for name in names}
        return [entry for entry in self._read.values() if entry.flow]

    def wrote(self, entry: Entry) -> bool:
        """Whether the task was sent out by this guard, and no other one of the app."""
        return f"-{self._owner}-" in entry.carrier

    def remove(self, names: set[str]) -> None:
        """Remove the files of entries that are in the state's accounts."""
        for name in sorted(names):
            self._state.delete(name)

    def _load(self, name: str) -> Entry:
        document = self._state.load(name)
        # Another process may have merged it since the folder was listed.
        found = Entry(flow="") if document is None else msgspec.convert(document, Entry)
        return replace(found, carrier=name)

    def _done(self) -> frozenset[str]:
        """What an earlier process has merged and could not remove any more."""
        if self._left is None:
            documents = map(self._state.load, self._state.names("ledger"))
            self._left = frozenset(
                name for document in documents if document for name in document.get("merged", ())
            )
            self.remove(set(self._left))
        return self._left
