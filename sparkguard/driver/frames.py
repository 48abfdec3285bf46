"""Batch frames that were evaluated: each has a number, so that it counts once however often."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TypeVar

from sparkguard.core.ledger import Entry, counted_once

K = TypeVar("K")

_REMEMBERED = 200
"""So many frames are known again; one that was not evaluated since counts again."""


@dataclass(slots=True)
class _Frame:
    """One evaluation's uses of a flow, and what counts of them."""

    number: int
    entries: list[Entry]

    def numbered(self, more: Iterable[Entry] = ()) -> list[Entry]:
        """Its entries and some more, under its number."""
        return [replace(entry, batch_id=self.number) for entry in (*self.entries, *more)]


class Frames:
    """The frames of a guard, by flow and use; the latest ones stand last."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], _Frame] = {}
        self._last: dict[str, int] = {}

    def numbered(self, entries: Iterable[Entry], following: Callable[[str], int]) -> list[Entry]:
        """The entries under their frames' numbers, and what those frames had before.

        What comes together of uses that nobody knows is one frame, as the halves of a join are.

        Args:
            following: the first number that the state has not for a flow.
        """
        made: list[Entry] = []
        for flow, fresh in _by(entries, lambda entry: entry.flow).items():
            for use, mine in _by(fresh, lambda entry: entry.use).items():
                frame = self._known.pop((flow, use), None)
                if frame is None:
                    continue
                self._known[flow, use] = frame
                frame.entries = counted_once([*frame.entries, *mine])
                made += frame.numbered()
            new = [entry for entry in fresh if (flow, entry.use) not in self._known]
            if new:
                made += self._new(flow, new, following(flow)).numbered()
        return made

    def peeked(self, entries: Iterable[Entry]) -> list[Entry]:
        """The same for entries that are only looked at; those of new frames have no number."""
        made: list[Entry] = []
        for place, mine in _by(entries, lambda entry: (entry.flow, entry.use)).items():
            frame = self._known.get(place)
            made += mine if frame is None else frame.numbered(mine)
        return made

    def _new(self, flow: str, entries: list[Entry], following: int) -> _Frame:
        number = self._last[flow] = max(following, self._last.get(flow, -1) + 1)
        frame = _Frame(number, counted_once(entries))
        for entry in entries:
            self._known[flow, entry.use] = frame
        while len(self._known) > _REMEMBERED:
            del self._known[next(iter(self._known))]
        return frame


def _by(entries: Iterable[Entry], key: Callable[[Entry], K]) -> dict[K, list[Entry]]:
    groups: dict[K, list[Entry]] = defaultdict(list)
    for entry in entries:
        groups[key(entry)].append(entry)
    return groups
