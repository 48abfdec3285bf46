"""Versions: whether an event may change a state, or comes twice, too late, too early, or too old.

The memory of this lies in the same stored value as the state, so check and update are one commit.
An expected version is the optimistic concurrency of event stores; what is remembered of ids is
the idempotent consumer's table, bounded.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from operator import itemgetter
from typing import Any

import msgspec
from msgspec.structs import replace

from sparkguard.core.update import KEEP, Keep

EventId = Any
"""A whole number, text or bytes."""


class Verdict(StrEnum):
    """What is to become of an event."""

    ACCEPT = "accept"
    DUPLICATE = "duplicate"
    """An event of the same id, or of the same sequence number, was applied."""
    STALE = "stale"
    """A later one was applied."""
    GAP = "gap"
    """One between the last and this has not come yet."""
    CONFLICT = "conflict"
    """It was made for another version than the state has."""
    TAKEN = "taken"
    """Another event has its number: one of another id."""


class Facts(msgspec.Struct, frozen=True, gc=False):
    """What an event says of itself; None where it says nothing."""

    sequence: int | None = None
    event_id: EventId | None = None
    expected: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """How events are judged.

    Attributes:
        first: the number that a key's sequence begins with, where it has no gaps; None where
            numbers only grow.
        remember: so many ids of a key's latest events are known.
        buffer: so many events of a key may wait for a missing one.
    """

    first: int | None = None
    remember: int = 100
    buffer: int = 1_000


class Memory(msgspec.Struct, array_like=True):
    """All that is stored for one key; later versions add fields at the end.

    Attributes:
        version: how many events have changed the state.
        state: the encoded state; None where there is none.
        applied: sequence number of the latest applied event.
        passed: the highest number whose turn came, whether or not its event was applied.
        ids: of the latest applied events, oldest first.
        waiting: events that came too early, by sequence number.
        deadline: when those fail, in milliseconds since 1970.
        timer: when the key's timer is due, likewise.
    """

    version: int = 0
    state: bytes | None = None
    applied: int | None = None
    passed: int | None = None
    ids: list[EventId] = []
    waiting: list[tuple[int, bytes]] = []
    deadline: int | None = None
    timer: int | None = None

    def copy(self) -> Memory:
        """Another one that is equal, and changes by itself."""
        return replace(self, ids=self.ids[:], waiting=self.waiting[:])

    @property
    def empty(self) -> bool:
        """Whether nothing is worth storing."""
        known = self.version or self.ids or self.waiting
        return not known and self.passed is None and self.timer is None


stored: Callable[[Memory], bytes] = msgspec.msgpack.Encoder().encode
"""What is stored of a memory."""

remembered: Callable[[bytes], Memory] = msgspec.msgpack.Decoder(Memory).decode
"""The memory that is stored."""


def judge(memory: Memory, facts: Facts, rules: Rules) -> Verdict:
    """What is to become of an event.

    One that is known by its id and has a later number waits as well, so that the turn of its
    number comes and those behind it go on.
    """
    turn = Verdict.ACCEPT
    if facts.sequence is not None:
        turn = _in_turn(memory, facts.sequence, rules)
    if turn is Verdict.GAP:
        return turn
    if facts.event_id is not None and facts.event_id in memory.ids:
        return Verdict.DUPLICATE
    if turn is Verdict.DUPLICATE and facts.event_id is not None and memory.ids:
        return Verdict.TAKEN
    if turn is not Verdict.ACCEPT:
        return turn
    if facts.expected is not None and facts.expected != memory.version:
        return Verdict.CONFLICT
    return Verdict.ACCEPT


def _in_turn(memory: Memory, sequence: int, rules: Rules) -> Verdict:
    if memory.applied is not None and sequence <= memory.applied:
        return Verdict.DUPLICATE if sequence == memory.applied else Verdict.STALE
    if rules.first is None:
        return Verdict.ACCEPT
    if sequence < rules.first:
        return Verdict.STALE
    # What failed may come again, as long as nothing later was applied.
    following = rules.first if memory.passed is None else memory.passed + 1
    return Verdict.GAP if sequence > following else Verdict.ACCEPT


def apply(memory: Memory, facts: Facts, rules: Rules, state: bytes | Keep) -> None:
    """Remember that an event was applied, and what came of it."""
    if state is not KEEP:
        memory.version += 1
        memory.state = state
    if facts.event_id is not None and rules.remember > 0:
        memory.ids.append(facts.event_id)
        del memory.ids[: -rules.remember]
    if facts.sequence is not None:
        memory.applied = facts.sequence
        turn_over(memory, facts)


def turn_over(memory: Memory, facts: Facts) -> None:
    """Remember that an event's turn came: the next one need not wait for it."""
    if facts.sequence is not None and (memory.passed is None or facts.sequence > memory.passed):
        memory.passed = facts.sequence


def wait(memory: Memory, sequence: int, packed: bytes, rules: Rules) -> Verdict:
    """Let an early event wait.

    Returns:
        ``ACCEPT`` if it waits, ``DUPLICATE`` if one of its number does already, ``GAP`` if there
        is no room.
    """
    place = bisect_left(memory.waiting, sequence, key=itemgetter(0))
    if place < len(memory.waiting) and memory.waiting[place][0] == sequence:
        return Verdict.DUPLICATE
    if len(memory.waiting) >= rules.buffer:
        return Verdict.GAP
    memory.waiting.insert(place, (sequence, packed))
    return Verdict.ACCEPT
