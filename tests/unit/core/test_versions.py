"""The verdicts about events, against the words that define them."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from sparkguard.core.update import KEEP
from sparkguard.core.versions import (
    Facts,
    Memory,
    Rules,
    Verdict,
    apply,
    judge,
    remembered,
    stored,
    turn_over,
    wait,
)

TURNS = {Verdict.ACCEPT, Verdict.CONFLICT, Verdict.DUPLICATE}
LOWEST, HIGHEST = -(2**63), 2**63 - 1

numbers = st.one_of(st.none(), st.integers(0, 6))
facts = st.builds(Facts, sequence=numbers, event_id=numbers, expected=numbers)
rules = st.builds(
    Rules, first=st.sampled_from([None, 0, 2]), remember=st.integers(0, 3), buffer=st.just(2)
)


def by_definition(
    applied: list[Facts], version: int, met: list[int], one: Facts, rules: Rules
) -> Verdict:
    """The verdict from all that ever happened, which nobody could store."""
    ids = [earlier.event_id for earlier in applied if earlier.event_id is not None]
    ids = ids[len(ids) - min(rules.remember, len(ids)) :]
    verdict = None if one.sequence is None else by_number(applied, met, one.sequence, rules)
    if verdict is Verdict.GAP:
        return verdict
    if one.event_id in ids:
        return Verdict.DUPLICATE
    if verdict is Verdict.DUPLICATE and ids and one.event_id is not None:
        return Verdict.TAKEN
    if verdict is not None:
        return verdict
    conflict = one.expected is not None and one.expected != version
    return Verdict.CONFLICT if conflict else Verdict.ACCEPT


def by_number(applied: list[Facts], met: list[int], number: int, rules: Rules) -> Verdict | None:
    """The part of it that numbers tell."""
    known = [earlier.sequence for earlier in applied if earlier.sequence is not None]
    if known and number <= max(known):
        return Verdict.DUPLICATE if number == max(known) else Verdict.STALE
    if rules.first is not None and number < rules.first:
        return Verdict.STALE
    if rules.first is not None and number > (max(met) + 1 if met else rules.first):
        return Verdict.GAP
    return None


@settings(max_examples=400)
@given(st.lists(st.tuples(facts, st.sampled_from(["new", "kept", "fails"])), max_size=25), rules)
def test_verdicts_are_those_of_the_whole_history(
    events: list[tuple[Facts, str]], rules: Rules
) -> None:
    """Whatever comes, in whatever order: what is remembered tells what the history would.

    The word says what the event's function does: a new state, the old one, or it fails.
    """
    memory = Memory()
    applied: list[Facts] = []
    met: list[int] = []
    version = 0
    for one, what in events:
        verdict = judge(memory, one, rules)
        assert verdict is by_definition(applied, version, met, one, rules)
        if verdict is Verdict.ACCEPT and what != "fails":
            version += what == "new"
            apply(memory, one, rules, b"%d" % version if what == "new" else KEEP)
            applied.append(one)
        elif verdict in TURNS:
            turn_over(memory, one)
        if one.sequence is not None and verdict in TURNS:
            met.append(one.sequence)
        memory = remembered(stored(memory))

        assert (memory.version, memory.state) == (version, b"%d" % version if version else None)
        assert memory.empty <= (memory == Memory())
        assert len(memory.ids) <= rules.remember
    known = [one.sequence for one in applied if one.sequence is not None]
    assert known == sorted(set(known))


def test_numbers_at_the_ends_of_their_range() -> None:
    """The lowest and the highest 64-bit number are numbers like others."""
    rules, memory = Rules(first=LOWEST), Memory()
    for number in (LOWEST, LOWEST + 1):
        assert judge(memory, Facts(sequence=number), rules) is Verdict.ACCEPT
        apply(memory, Facts(sequence=number), rules, b"")
        memory = remembered(stored(memory))
    assert judge(memory, Facts(sequence=HIGHEST), rules) is Verdict.GAP
    apply(memory, Facts(sequence=HIGHEST), rules, b"")
    memory = remembered(stored(memory))
    assert judge(memory, Facts(sequence=HIGHEST), rules) is Verdict.DUPLICATE
    assert judge(memory, Facts(sequence=LOWEST), rules) is Verdict.STALE


def test_room_for_events_that_wait() -> None:
    """So many wait, each number once, in the order of their numbers."""
    rules, memory = Rules(first=0, buffer=2), Memory()
    verdicts = [wait(memory, number, b"%d" % number, rules) for number in (5, 3, 5, 4)]
    assert verdicts == [Verdict.ACCEPT, Verdict.ACCEPT, Verdict.DUPLICATE, Verdict.GAP]
    assert memory.waiting == [(3, b"3"), (5, b"5")]
    assert remembered(stored(memory)).waiting == [(3, b"3"), (5, b"5")]
