"""Batch frames that were evaluated: each has a number, so that it counts once however often."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from sparkguard.core.ledger import Entry

_REMEMBERED = 20
"""So many evaluated frames are known again; an older one counts again."""


@dataclass(slots=True)
class _Evaluated:
    flow: str
    number: int
    entries: list[Entry]

    def shares(self, entries: Iterable[Entry]) -> bool:
        """Whether these come from the same use of the flow."""
        return not {entry.use for entry in self.entries}.isdisjoint(e.use for e in entries)


class Frames:
    """The latest evaluated frames of a guard."""

    def __init__(self) -> None:
        self._known: list[_Evaluated] = []

    def numbered(self, entries: Iterable[Entry], following: Callable[[str], int]) -> list[Entry]:
        """The entries with their frame's number as batch id, and with them what it had before.

        Args:
            following: the number that the next frame of a flow gets.
        """
        flows: dict[str, list[Entry]] = defaultdict(list)
        for entry in entries:
            flows[entry.flow].append(entry)
        return [
            replace(entry, batch_id=frame.number)
            for frame in [self._frame(flow, fresh, following) for flow, fresh in flows.items()]
            for entry in frame.entries
        ]

    def _frame(self, flow: str, fresh: list[Entry], following: Callable[[str], int]) -> _Evaluated:
        frame = next((one for one in self._known if one.flow == flow and one.shares(fresh)), None)
        if frame is None:
            frame = _Evaluated(flow, following(flow), [])
            self._known = [*self._known, frame][-_REMEMBERED:]
        frame.entries.extend(fresh)
        return frame
