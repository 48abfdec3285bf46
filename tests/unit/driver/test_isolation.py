"""Isolation and its journal: a crash at any point, and the replay that goes on from there."""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkguard.core.budget import Window
from sparkguard.core.failure import Category, Cause, Failure
from sparkguard.core.policy import Budget
from sparkguard.driver.isolation import Ended, Isolation, Left
from sparkguard.driver.journal import File, Journal, Journals, Plan
from sparkguard.driver.state import State
from sparkguard.errors import StageFailedError

POISON = Failure(
    stage="store",
    category=Category.PRODUCTION,
    cause=Cause.POISON,
    exception_types=("ValueError",),
    fingerprint="bad",
)


class Crash(BaseException):
    """Nothing runs after it."""


class Memory(State):
    """A state whose documents survive a crash; files would take a hundred times as long."""

    def __init__(self) -> None:
        self.documents: dict[str, str] = {}

    def load(self, name: str) -> Any:
        return json.loads(self.documents[name]) if name in self.documents else None

    def store(self, name: str, document: Any) -> None:
        self.documents[name] = json.dumps(document)

    def delete(self, name: str) -> None:
        self.documents.pop(name, None)


def plan_of(sizes: list[int], batch_id: int = 7) -> Plan:
    """A batch in files of these sizes, numbered as Spark numbers the rows of partitions."""
    files = [File(name=f"{n}.parquet", first=n << 33, rows=rows) for n, rows in enumerate(sizes)]
    return Plan(token="t", batch_id=batch_id, folder="f", schema="{}", files=tuple(files))


class Target:
    """A target that refuses bad rows, and remembers the names under which it has written.

    It crashes, or is away, at those of its steps that are due: before a call, behind one, behind
    a letter.
    """

    def __init__(self, bad: set[int], crashes: set[int]) -> None:
        self.bad = bad
        self.crashes = crashes
        self.written: dict[tuple[int, int], int] = {}
        self.letters: Counter[tuple[int, str]] = Counter()
        self.tried: list[range] = []
        self._steps = itertools.count()

    def step(self) -> None:
        if next(self._steps) in self.crashes:
            raise Crash

    def call(self, rows: range) -> Ended:
        self.step()
        self.tried.append(rows)
        if self.bad & set(rows):
            return Ended(failure=POISON, failed=1)
        self.written[rows.start, rows.stop] = self.written.get((rows.start, rows.stop), 0) + 1
        self.step()
        return Ended()

    def leave_of(self, journal: Journal) -> Callable[[range, Failure], Left]:
        def leave(rows: range, failure: Failure) -> Left:
            # All bad rows are equal here, so their letters are told apart by their number.
            number = len(journal.progress.letters)
            self.letters[rows.start, f"same-{number}"] += 1
            self.step()
            return Left(fact="dead_lettered", rows=1, letter="same")

        return leave


def replayed(target: Target, state: State, plan: Plan, limit: int = 10_000) -> Journal:
    """Isolate, and after each crash again, with nothing but the state."""
    journal = Journals(state).begin("store", "q", plan)
    while True:
        isolation = Isolation(
            journal=journal, call=target.call, leave=target.leave_of(journal), limit=limit
        )
        try:
            isolation.run()
        except Crash:
            found = Journals(state).find("store", "q")
            assert found is not None
            journal = found
            continue
        return journal


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[int], set[int]]:
    """Files' sizes, and which rows are bad."""
    sizes = draw(st.lists(st.integers(1, 40), min_size=1, max_size=6))
    rows = st.integers(0, sum(sizes) - 1)
    return sizes, draw(st.sets(rows, max_size=6))


@given(batches(), st.sets(st.integers(0, 60), max_size=8))
def test_a_crash_anywhere(batch: tuple[list[int], set[int]], crashes: set[int]) -> None:
    """P1, P4, P6: whatever the crash, each good row has one range, each bad row one letter."""
    sizes, bad = batch
    plan, target = plan_of(sizes), Target(bad, crashes)

    journal = replayed(target, Memory(), plan)

    rows = [row for part in target.written for row in range(*part)]
    assert sorted(rows) == sorted(set(range(plan.rows)) - bad), "no row is written with other rows"
    # A letter may be stored twice, with the same id; equal rows have different ids.
    assert {row for row, _ in target.letters} == bad
    assert len({identity for _, identity in target.letters}) == len(bad)
    progress = journal.progress
    assert (progress.written, progress.dead_lettered) == (plan.rows - len(bad), len(bad))
    assert progress.done == plan.rows
    assert sum(one.count for one in progress.top) == len(bad)
    # A call is made again only where a crash took its end away.
    assert sum(target.written.values()) - len(target.written) <= len(crashes)


@given(batches())
def test_few_calls(batch: tuple[list[int], set[int]]) -> None:
    """K bad of n rows cost about 2 k log2(n/k) calls, and each call is of new rows."""
    sizes, bad = batch
    plan, target = plan_of(sizes), Target(bad, set())

    replayed(target, Memory(), plan)

    assert len(set(map(str, target.tried))) == len(target.tried)
    k = max(len(bad), 1)
    assert len(target.tried) <= 2 * k * (math.log2(plan.rows / k) + len(sizes) + 2)


@given(batches())
def test_ranges_follow_files(batch: tuple[list[int], set[int]]) -> None:
    """Of several files whole ones are read, of one file some rows."""
    sizes, bad = batch
    plan, target = plan_of(sizes), Target(bad, set())
    replayed(target, Memory(), plan)
    for rows in target.tried:
        parts = plan.parts(rows)
        assert sum(part.stop - part.start for part in parts) == len(rows)
        assert len(parts) == 1 or all(part.all for part in parts)


def test_another_token_is_another_plan() -> None:
    """A plan that replaces one of the same batch does not inherit its progress."""
    state = Memory()
    replayed(Target({3}, set()), state, plan_of([10]))
    Journals(state).begin("store", "q", replace(plan_of([10]), token="other"))
    found = Journals(state).find("store", "q")
    assert found is not None
    assert found.progress.done == 0


def test_dropped(tmp_path: Path) -> None:
    """What was committed leaves nothing in the state; a journal is handed out once."""
    state = State(str(tmp_path))
    journals = Journals(state)
    journal = journals.begin("a/b", "q", plan_of([10]))
    journal.split()
    assert len(state.names("isolation")) == 2
    assert Journals(state).find("a/b", "q") is not None
    assert journals.drop("a/b", "q", journal)
    assert not journals.drop("a/b", "q", journal)
    assert journals.find("a/b", "q") is None
    assert state.names("isolation") == []


def test_dropped_too_late() -> None:
    """Who comes for a journal when the next batch has begun its own does not take that one."""
    state = Memory()
    journals = Journals(state)
    old = journals.begin("store", "q", plan_of([10]))
    new = journals.begin("store", "q", plan_of([10], batch_id=8))
    assert not journals.drop("store", "q", old)
    assert journals.find("store", "q") is new
    assert len(state.documents) == 1


def test_a_state_that_is_full() -> None:
    """What could not be stored has not happened: a replay in the same process starts before it."""

    class Full(Memory):
        def store(self, name: str, document: Any) -> None:
            if name.endswith("progress"):
                raise OSError("no space left")
            super().store(name, document)

    journal = Journals(Full()).begin("store", "q", plan_of([10]))
    for change in (journal.split, journal.written):
        with pytest.raises(OSError, match="no space"):
            change()
        assert journal.next == range(5)
        assert journal.progress.done == 0


def test_outside_a_query(tmp_path: Path) -> None:
    """Without a query nothing is stored: the next batch may have the same number."""
    state = State(str(tmp_path))
    journals = Journals(state)
    journals.begin("store", None, plan_of([10])).split()
    assert journals.find("store", None) is None
    assert state.names("isolation") == []


def isolation(target: Target, sizes: list[int], **more: Any) -> Isolation:
    """One over a new batch."""
    journal = Journals().begin("store", None, plan_of(sizes))
    facts = {"limit": 1000} | more
    return Isolation(journal=journal, call=target.call, leave=target.leave_of(journal), **facts)


def test_calls_are_bounded() -> None:
    """Beyond the limit the stage fails, and says which setting it is."""
    target = Target(set(range(0, 1000, 3)), set())
    with pytest.raises(StageFailedError, match=r"not found in 20 calls \(isolate.max_calls\)"):
        isolation(target, [1000], limit=20).run()
    assert len(target.tried) <= 20 + math.log2(1000)


def test_over_budget() -> None:
    """P5: too many bad rows are no bad rows; judged before the next one leaves."""
    budget = Budget(max_ratio=0.05, window=100, then="restart")
    target = Target(set(range(0, 1000, 7)), set())
    with pytest.raises(StageFailedError, match="its budget is") as caught:
        isolation(target, [1000], window=Window(budget)).run()
    assert caught.value.action == "restart"
    assert sum(target.letters.values()) == 50
    isolation(Target({1}, set()), [1000], window=Window(budget)).run()


def test_an_outage_is_no_rows_fault() -> None:
    """P9: what is no poison is not halved; it is decided about for its rows together."""
    away = replace(POISON, cause=Cause.TRANSIENT)
    asked: list[range] = []

    def leave(rows: range, failure: Failure) -> Left:
        asked.append(rows)
        raise Crash

    journal = Journals().begin("store", None, plan_of([10]))
    one = Isolation(
        journal=journal, call=lambda _: Ended(failure=away, failed=1), leave=leave, limit=9
    )
    with pytest.raises(Crash):
        one.run()
    assert asked == [range(5)]
    assert journal.next == range(5)
