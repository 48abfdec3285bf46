"""One key after another, through the processor that Spark would call, without Spark."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, TypedDict

import msgspec
import pyarrow as pa
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import Row
from pyspark.sql.streaming.tws_tester import TwsTester

import sparkguard as sg
from sparkguard import pickling
from sparkguard.core.versions import remembered
from sparkguard.errors import StageFailedError
from sparkguard.executor.encode import schema_of
from sparkguard.executor.keyed_plan import PACKED, KeyedPlan, Packer
from sparkguard.executor.keyed_plan import Event as KeyedEvent
from sparkguard.executor.keyed_processor import MEMORY, Processor
from sparkguard.executor.keyed_task import KeyedTask
from sparkguard.executor.plan import Layout, Plan, Step
from sparkguard.executor.rows import row_reader
from sparkguard.executor.work import Work
from sparkguard.keyed import emitted_shape, with_versions
from tests.flow.made import ListSink, ManualTask, policy

NOW = 1_700_000_000_000
ORDER = ("k", "seq", "id", "expected", "what")


class Event(msgspec.Struct):
    k: str | None
    seq: int | None = None
    id: str | None = None
    expected: int | None = None
    what: str = ""


class Log(msgspec.Struct):
    seen: list[Any] = []


class Said(msgspec.Struct):
    what: str
    count: int


def log(state: Log | None, event: Event) -> sg.Update[Log, Said]:
    """Changes the state that it is given, then perhaps fails; emits the state's own numbers."""
    state = state or Log()
    state.seen.append(event.seq if event.seq is not None else event.what)
    match event.what:
        case "bad":
            raise ValueError("bad")
        case "misfit":
            return sg.Update(state=state, emit=[Said(event.what, "many")])  # type: ignore[arg-type]
        case "gone":
            return sg.Update(state=None)
        case "refused":
            return sg.Update(state=sg.KEEP, emit=[Said(event.what, len(state.seen) - 1)])
        case "later":
            return sg.Update(state=state, timer=timedelta(seconds=10))
        case "unreadable":
            return sg.Update(state={"seen": 1})  # type: ignore[arg-type]
        case _:
            return sg.Update(state=state, emit=[Said(event.what, len(state.seen))])


class Keys:
    """A stateful stage, its keys, and what became of its events."""

    def __init__(self, stage: sg.Stage[Any, Any], ttl: int | None = None, **changes: Any) -> None:
        self.sink = ListSink()
        keyed = stage.keyed
        assert keyed is not None
        step = Step(
            name=stage.name,
            kind=stage.kind,
            category=stage.category,
            policy=with_versions(policy(**changes)),
            function=stage,
        )
        plan = Plan(
            app="app",
            flow=stage.name,
            use="use",
            steps=(step,),
            layout=Layout(rows=len(ORDER)),
            shape=emitted_shape(stage),
            sinks={"default": self.sink},
        )
        read, convert = row_reader(stage.signature().input)
        self.plan = KeyedPlan(
            plan=plan,
            keyed=keyed,
            read=read,
            convert=convert,
            columns=tuple(None if name is None else ORDER.index(name) for name in keyed.facts),
        )
        self.work = Work.begin(plan, ManualTask())
        waits = keyed.rules.first is not None
        self.processor = Processor(b"", ttl, None, waits=waits)
        self.processor._keyed = KeyedTask(self.plan, self.work)
        self.tester = TwsTester(self.processor, timeMode="ProcessingTime")
        self.at(NOW)
        self._packer = Packer(self.plan, 0)

    def at(self, now: int) -> list[Any]:
        """Set the clock; what the timers that are due emit."""
        return self._emitted(self.tester.setProcessingTime(now))

    def give(self, *events: Event, key: Any = "a") -> list[Any]:
        """One batch of one key; what it emits."""
        kinds = (pa.string(), pa.int64(), pa.string(), pa.int64(), pa.string())
        columns = [
            pa.array([getattr(event, name) for event in events], kind)
            for name, kind in zip(ORDER, kinds, strict=True)
        ]
        packed = self._packer.batch(pa.RecordBatch.from_arrays(columns, list(ORDER)))
        row = Row("key", PACKED)
        half = len(packed) // 2
        bundles = [part for part in (packed[:half], packed[half:]) if part]
        return self._emitted(
            self.tester.test(key, [row(key, pickling.pack(part)) for part in bundles])
        )

    def _emitted(self, rows: Any) -> list[Any]:
        schema = schema_of(self.plan.plan.shape)
        found: list[Any] = []
        for row in rows or ():
            found += pa.ipc.read_record_batch(pa.py_buffer(row.emitted), schema).to_pylist()
        return found

    def memory(self, key: Any = "a") -> Any:
        """What is stored of a key; None if nothing is."""
        found = self.tester.peekValueState(MEMORY, key)
        return None if found is None else remembered(found[0])

    def seen(self, key: Any = "a") -> Any:
        """The key's state."""
        data = self.memory(key).state
        return None if data is None else msgspec.msgpack.decode(data, type=Log).seen

    def letters(self) -> list[Any]:
        """The failures that were stored, as the name of their exception."""
        self.work.flush()
        return [one.failure.exception_type.rpartition(".")[2] for one in self.sink.stored]

    def counts(self) -> dict[str, int]:
        """The stage's facts that are not zero, and whether the account is balanced."""
        tally = self.work.tally
        facts = tally.stages[self.plan.step.name]
        gone = facts["skipped"] + facts["dead_lettered"]
        assert tally.records_in == tally.records_out + gone
        return {name: count for name, count in facts.items() if count}


def stage(**more: Any) -> Any:
    """The stage over `log`."""
    return sg.stateful(key="k", state=Log, **more)(log)


def test_an_event_that_raises_changes_nothing() -> None:
    """It changed the state in place, and emitted nothing: the letter has key, version, state."""
    keys = Keys(stage(), redact=("thr..",))
    said = keys.give(*(Event("a", what=what) for what in ("one", "bad", "three", "bad", "five")))

    assert said == [
        {"what": "one", "count": 1},
        {"what": "three", "count": 2},
        {"what": "five", "count": 3},
    ]
    assert keys.seen() == ["one", "three", "five"]
    assert keys.memory().version == 3
    assert keys.letters() == ["ValueError", "ValueError"]
    failure = keys.sink.stored[1].failure
    assert (failure.state_key, failure.state_version) == ("a", 2)
    assert failure.state == '{"seen":["one","***"]}'
    assert b'"what": "bad"' in (failure.record.value or b"")
    assert len({one.id for one in keys.sink.stored}) == 2


@pytest.mark.parametrize("what", ["misfit", "unreadable"])
def test_what_cannot_be_emitted_or_read_back_changes_nothing(what: str) -> None:
    """Found at the end of the stretch, when later events stood on it: those are applied anew."""
    keys = Keys(stage(event_id="id"))
    events = [Event("a", id=one, what=one) for one in ("one", what, "three")]
    said = keys.give(*events, Event("a", id=what, what=what), Event("a", what="five"))

    assert [one["what"] for one in said] == ["one", "three", "five"]
    assert keys.seen() == ["one", "three", "five"]
    assert len(keys.letters()) == 2
    assert keys.counts()["dead_lettered"] == 2


def test_a_large_state_is_read_back_at_the_end() -> None:
    """Not after each event, and an event whose state cannot be read back still leaves alone."""

    @sg.stateful(key="k", state=Log, returns=Said)
    def spoil(state: Log | None, event: Event) -> Any:
        state = state or Log(["x" * 5_000])
        state.seen.append(event.what)
        return sg.Update(state={"seen": "x" * 5_000} if event.what == "bad" else state)

    keys = Keys(spoil)
    keys.give(*(Event("a", what=what) for what in ("one", "bad", "two")))

    assert keys.seen()[1:] == ["one", "two"]
    assert keys.letters() == ["TypeError"]


@pytest.mark.parametrize("large", ["", "x" * 5_000])
def test_what_is_emitted_is_not_changed_by_the_next_event(large: str) -> None:
    """A function may emit the very state that it goes on changing."""

    @sg.stateful(key="k", state=Log, returns="seen array<string>")
    def echo(state: Log | None, event: Event) -> Any:
        state = state or Log([large])
        state.seen.append(event.what)
        return sg.Update(state=state, emit=[state])

    said = Keys(echo).give(Event("a", what="x"), Event("a", what="y"))
    assert said == [{"seen": [large, "x"]}, {"seen": [large, "x", "y"]}]


batches = st.integers(1, 8).flatmap(
    lambda count: st.lists(st.lists(st.integers(1, count), max_size=6), max_size=6).map(
        lambda some: [*some, list(range(count, 0, -1))]
    )
)


@settings(max_examples=60)
@given(batches, st.dictionaries(st.integers(1, 8), st.sampled_from(["bad", "refused"]), max_size=4))
def test_a_sequence_without_gaps_is_applied_once_and_in_order(
    batches: Sequence[Sequence[int]], whats: dict[int, str]
) -> None:
    """Whatever comes twice, early or late, in whatever batches: as one event after the other."""
    keys = Keys(stage(sequence="seq", first=1, event_id="id"))
    said: list[Any] = []
    for numbers in batches:
        said += keys.give(
            *(
                Event("a", seq=number, id=str(number), what=whats.get(number, "fine"))
                for number in numbers
            )
        )
        if (memory := keys.memory()) is not None:
            assert memory.version <= max([*numbers, memory.applied or 0])

    state: list[int] = []
    told: list[int] = []
    for number in range(1, max(batches[-1]) + 1):
        what = whats.get(number, "fine")
        state += [number] if what == "fine" else []
        told += [] if what == "bad" else [len(state)]
    memory = keys.memory()
    assert (keys.seen() if state else []) == state
    assert (memory.version, memory.waiting) == (len(state), [])
    assert [one["count"] for one in said] == told
    assert set(keys.letters()) <= {"ValueError"}
    assert keys.work.tally.records_in == sum(map(len, batches))
    keys.counts()


@settings(max_examples=60)
@given(st.lists(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=6), min_size=1, max_size=6))
def test_a_sequence_with_gaps_only_grows(batches: list[list[int]]) -> None:
    """Against an oracle: each batch in order, what is not higher than the last is left out."""
    keys = Keys(stage(sequence="seq"))
    expected: list[int] = []
    for numbers in batches:
        keys.give(*(Event("a", seq=number) for number in numbers))
        for number in sorted(numbers):
            if not expected or number > expected[-1]:
                expected.append(number)

    assert (keys.seen() if keys.memory() else []) == expected
    facts = keys.counts()
    assert facts.get("skipped", 0) == facts.get("repeated", 0)
    assert keys.letters() == []


def test_versions_that_are_expected() -> None:
    """Two commands for one version: the second is a conflict, and may come again with a new one."""
    keys = Keys(stage(expected_version="expected"))
    keys.give(*(Event("a", expected=0, what=what) for what in ("first", "second")))
    keys.give(Event("a", expected=1, what="again"), Event("a", what="whatever"))

    assert keys.seen() == ["first", "again", "whatever"]
    assert keys.letters() == ["ConflictError"]
    assert keys.sink.stored[0].failure.state_version == 1


@settings(max_examples=60)
@given(
    st.lists(
        st.lists(
            st.tuples(
                st.integers(0, 12),
                st.one_of(st.none(), st.integers(0, 5)),
                st.sampled_from(["fine", "refused", "bad", "gone"]),
            ),
            max_size=8,
        ),
        max_size=4,
    )
)
def test_commands_are_answered_as_one_after_the_other(
    batches: list[list[tuple[int, int | None, str]]],
) -> None:
    """Against an oracle: a refused command raises no version, and none is answered twice."""
    keys = Keys(stage(event_id="id", expected_version="expected"))
    state: list[str] = []
    answered: set[int] = set()
    said: list[Any] = []
    told: list[Any] = []
    for commands in batches:
        said += keys.give(
            *(Event("a", id=str(id_), expected=at, what=what) for id_, at, what in commands)
        )
        for id_, at, what in commands:
            if id_ in answered or what == "bad" or at not in {None, len(state)}:
                continue
            answered.add(id_)
            if what == "gone":
                state, answered = [], set()
                continue
            state += [what] if what == "fine" else []
            told.append({"what": what, "count": len(state)})

    memory = keys.memory()
    assert said == told
    assert (memory is None) == (not answered)
    if memory is not None:
        assert (memory.version, set(memory.ids)) == (len(state), set(map(str, answered)))
    assert (keys.seen() if state else []) == state
    keys.counts()


@pytest.mark.parametrize("large", ["", "x" * 5_000])
def test_a_state_that_is_kept(large: str) -> None:
    """Neither it nor its version changes, even where the function changed the object in place."""

    @sg.stateful(key="k", state=Log, event_id="id", returns=Said, on_timer=log)
    def decide(state: Log | None, event: Event) -> Any:
        new = state or Log([large] if event.what == "open" else [])
        new.seen.append(event.what)
        if state is None and event.what != "open":
            return sg.Update(state=sg.KEEP, timer=timedelta(seconds=1))
        if event.what == "refused":
            return sg.Update(state=sg.KEEP, emit=[Said(event.what, len(new.seen))])
        return sg.Update(state=new)

    keys = Keys(decide)
    keys.give(Event("a", id="0", what="early"))
    assert (keys.memory().version, keys.memory().state, keys.memory().ids) == (0, None, ["0"])
    assert list(keys.tester.handle._timers.listTimers("a")) == [NOW + 1_000]
    whats = {"0": "early", "1": "open", "2": "refused", "3": "in", "4": "refused", "5": "in"}
    events = [Event("a", id=id_, what=what) for id_, what in whats.items()]
    said = [*keys.give(*events[:5]), *keys.give(*events[3:])]

    assert [one["count"] for one in said] == [3, 4]
    assert keys.seen() == [large, "open", "in", "in"]
    assert keys.memory().version == 3
    assert keys.memory().ids == list(whats)
    assert keys.letters() == []
    assert keys.counts()["repeated"] == 3


def test_a_timer_of_a_key_without_a_state() -> None:
    """Nothing is stored of the key but that: it fires all the same."""
    states: list[Any] = []

    def due(state: Log | None, now: datetime) -> sg.Update[Log, Said]:
        states.append(state)
        return sg.Update(state=sg.KEEP)

    def ask(state: Log | None, event: Event) -> sg.Update[Log, Said]:
        return sg.Update(state=sg.KEEP, timer=timedelta(seconds=1))

    keys = Keys(sg.stateful(key="k", state=Log, on_timer=due)(ask))
    keys.give(Event("a"))
    keys.at(NOW + 1_000)
    assert (states, keys.memory()) == ([None], None)


def test_repeated_events_use_up_no_budget() -> None:
    """P5: duplicates and stale events are no sign that something is wrong; failures are."""
    from sparkguard.core.policy import Budget

    keys = Keys(stage(event_id="id"), budget=Budget(max_ratio=0.1, window=10))
    keys.give(*(Event("a", id="same", what="x") for _ in range(30)))

    assert keys.counts() == {
        "entered": 30,
        "skipped": 29,
        "repeated": 29,
        "failed_attempts": 29,
    }
    with pytest.raises(StageFailedError, match="its budget"):
        keys.give(*(Event("a", what="bad") for _ in range(10)))


def test_what_waits_too_long_fails() -> None:
    """A gap is waited for, up to a bound and a time; then each event that waited is a letter."""
    keys = Keys(stage(sequence="seq", first=1, buffer=2, gap_timeout=timedelta(seconds=5)))
    keys.give(Event("a", seq=1))
    assert keys.give(*(Event("a", seq=number) for number in (3, 4, 5, 3))) == []
    assert keys.letters() == ["GapError"]
    assert len(keys.memory().waiting) == 2

    keys.at(NOW + 4_999)
    assert len(keys.memory().waiting) == 2
    keys.tester._currentProcessingTimeMs = NOW - 3_600_000  # the clock was put back
    keys.give(Event("a", seq=4))
    keys.at(NOW - 3_600_000 + 5_000)

    assert keys.memory().waiting == []
    assert keys.letters() == ["GapError"] * 3
    keys.give(Event("a", seq=3), Event("a", seq=2))
    assert keys.seen() == [1, 2, 3]


def test_another_event_of_one_number() -> None:
    """P1: it is a conflict, not a duplicate: it was never applied, so it may not be left out."""
    keys = Keys(stage(sequence="seq", event_id="id", first=1))
    keys.give(Event("a", 3, "C", what="bad"), Event("a", 3, "D"), Event("a", 3, "C"))
    keys.give(Event("a", 1, "A"), Event("a", 2, "B"), Event("a", 4, "E"), Event("a", 4, "F"))
    assert keys.seen() == [1, 2, 4]
    assert sorted(keys.letters()) == ["ConflictError", "ConflictError", "ValueError"]
    assert keys.counts()["repeated"] == 1


def test_a_duplicate_takes_the_turn_of_its_number() -> None:
    """P1: an id that is known already, under the next number, holds up nobody behind it."""
    keys = Keys(stage(sequence="seq", event_id="id", first=1))
    keys.give(Event("a", 4, "A"), Event("a", 5, "E"))
    keys.give(*(Event("a", number, one) for number, one in ((1, "A"), (2, "B"), (3, "A"))))
    assert (keys.seen(), keys.memory().waiting, keys.letters()) == ([1, 2, 5], [], [])
    keys.give(Event("a", 6, "F"), Event("a", 0, "A"))
    assert keys.seen() == [1, 2, 5, 6]

    keys = Keys(stage(sequence="seq", event_id="id", first=1))
    keys.give(Event("a", 1, "A"), Event("a", 3, "A"), Event("a", 4, "D"))
    keys.give(Event("a", 2, "B"))
    assert keys.seen() == [1, 2, 4]


def test_a_conflict_takes_the_turn_of_its_number() -> None:
    """P1: those behind it do not wait for it, for it will not come under this number."""
    keys = Keys(stage(sequence="seq", expected_version="expected", first=1))
    keys.give(Event("a", 1), Event("a", 2, expected=7), Event("a", 3))
    assert (keys.seen(), keys.memory().waiting, len(keys.letters())) == ([1, 3], [], 1)


def test_a_deleted_key_keeps_what_waits() -> None:
    """P1: events that wait have not had their turn, whatever became of the state meanwhile."""

    def forget(state: Log | None, now: datetime) -> sg.Update[Log, Said]:
        return sg.Update(state=None)

    keys = Keys(stage(sequence="seq", first=1, on_timer=forget))
    keys.give(Event("a", 1, what="later"), Event("a", 3))
    keys.at(NOW + 10_000)
    memory = keys.memory()
    assert (memory.version, memory.timer, len(memory.waiting)) == (0, None, 1)
    keys.give(Event("a", 1), Event("a", 2))
    assert keys.seen() == [1, 2, 3]


def test_a_misfit_leaves_those_that_wait() -> None:
    """P1: a stretch that is gone through again lets no event wait twice, and forgets none."""
    keys = Keys(stage(sequence="seq", first=1))
    keys.give(Event("a", 1), Event("a", 2, what="misfit"), Event("a", 4))
    assert [number for number, _ in keys.memory().waiting] == [4]
    assert "repeated" not in keys.counts()
    keys.give(Event("a", 3))
    assert (keys.seen(), len(keys.letters())) == ([1, 3, 4], 1)


def test_a_gap_that_moves_has_its_whole_time() -> None:
    """Each missing event has `gap_timeout` from when those before it came."""
    keys = Keys(stage(sequence="seq", first=1, gap_timeout=timedelta(seconds=10)))
    keys.give(Event("a", 2), Event("a", 4))
    keys.at(NOW + 9_000)
    keys.give(Event("a", 1))
    keys.at(NOW + 11_000)
    assert (keys.seen(), keys.letters(), keys.memory().deadline) == ([1, 2], [], NOW + 19_000)
    keys.at(NOW + 19_000)
    assert (len(keys.letters()), keys.memory().deadline) == (1, None)


def test_what_waited_too_long_uses_up_no_budget() -> None:
    """P5: it was counted when it came; a stage that stopped for it would stop at each restart."""
    from sparkguard.core.policy import Budget

    budget = Budget(max_ratio=0.5, window=10)
    keys = Keys(stage(sequence="seq", first=1, gap_timeout=timedelta(seconds=1)), budget=budget)
    keys.give(*(Event("a", number) for number in range(2, 14)))
    keys.at(NOW + 1_000)
    assert len(keys.letters()) == 12


def test_a_timer_that_is_put_off() -> None:
    """It is gone from what is stored, and from Spark."""

    def remind(state: Log | None, now: datetime) -> sg.Update[Log, Said]:
        raise AssertionError(now)

    def ask(state: Log | None, event: Event) -> sg.Update[Log, Said]:
        timer: Any = "off" if event.what == "off" else timedelta(seconds=10)
        return sg.Update(state=Log(), timer=timer)

    keys = Keys(sg.stateful(key="k", state=Log, returns=Said, on_timer=remind)(ask))
    keys.give(Event("a"), Event("b", what="off"))
    keys.give(Event("a"))
    keys.give(Event("a", what="off"))
    assert keys.memory().timer is None
    assert list(keys.tester.handle._timers.listTimers("a")) == []


@pytest.mark.parametrize("kafka", [False, True])
def test_a_timer_that_fails(kafka: bool) -> None:
    """P2: it is a letter of its own, each time, and the state stays; it is not set again."""

    def remind(state: Log | None, now: datetime) -> sg.Update[Log, Said]:
        raise ValueError("no")

    keys = Keys(stage(on_timer=remind))
    assert keys.processor._keyed is not None
    keys.processor._keyed.plan = dataclasses.replace(keys.plan, kafka=kafka)
    for _ in range(2):
        keys.give(Event("a", what="later"))
        keys.at(keys.memory().timer)
        assert keys.memory().timer is None
    assert keys.letters() == ["ValueError"] * 2
    first, second = keys.sink.stored
    assert first.id != second.id
    assert (first.failure.payload, json.loads(first.failure.record.value or b"")) == (
        "row",
        {"timer": "2023-11-14T22:13:30+00:00"},
    )


def test_timers() -> None:
    """One a key: it fires once, its update is an update, and a raise changes nothing."""
    calls: list[datetime] = []

    def remind(state: Log | None, now: datetime) -> sg.Update[Log, Said]:
        calls.append(now)
        assert state is not None
        state.seen.append("late")
        if len(calls) > 1:
            raise ValueError("no")
        return sg.Update(state=state, emit=[Said("late", 1)], timer=now + timedelta(seconds=5))

    keys = Keys(stage(on_timer=remind))
    keys.give(Event("a", what="later"))
    keys.at(NOW + 1)
    keys.give(Event("a", what="later"))
    assert list(keys.tester.handle._timers.listTimers("a")) == [NOW + 10_001]
    keys.tester._currentProcessingTimeMs = NOW
    keys.give(Event("a", what="later"))
    assert keys.at(NOW + 9_999) == []
    assert keys.at(NOW + 10_000) == [{"what": "late", "count": 1}]
    assert keys.at(NOW + 15_000) == []

    assert calls == [datetime.fromtimestamp(NOW / 1000 + n, UTC) for n in (10, 15)]
    assert keys.seen() == ["later", "later", "later", "late"]
    assert keys.letters() == ["ValueError"]
    failure = keys.sink.stored[0].failure
    assert (failure.state_key, failure.state_version) == ("a", 4)
    keys.counts()

    keys.give(Event("a", what="later"))
    keys.give(Event("a", what="gone"))
    assert keys.memory() is None
    assert keys.at(NOW + 60_000) == []


def test_a_timer_that_is_due_already() -> None:
    """It fires with the next batch, and never in the one that has set it."""
    calls: list[datetime] = []

    def again(state: Log | None, now: datetime) -> sg.Update[Log, Said]:
        calls.append(now)
        return sg.Update(state=state, timer=now - timedelta(days=1) if len(calls) < 3 else None)

    keys = Keys(stage(on_timer=again))
    keys.give(Event("a", what="later"))
    for later in range(10, 15):
        keys.at(NOW + later * 1_000)
        assert all(one > NOW + later * 1_000 for one in keys.tester.handle._timers.listTimers("a"))
    assert calls == [datetime.fromtimestamp(NOW / 1000 + later, UTC) for later in (10, 11, 12)]


def test_what_is_no_event() -> None:
    """No key, no number, a row of another type: failures, and no crash."""
    keys = Keys(stage(sequence="seq"))
    keys.give(Event(None, seq=1), Event(None, seq=2), key=None)
    keys.give(Event("a"), Event("a", seq=1, what=None))  # type: ignore[arg-type]

    assert keys.letters() == ["NoKeyError", "NoKeyError", "NoKeyError", "ValidationError"]
    assert keys.memory(None) is None
    assert keys.counts()["dead_lettered"] == 4


def test_a_stored_state_of_another_type_ends_the_query() -> None:
    """P10: the code is wrong, whatever the event: key and version are named."""
    keys = Keys(stage())
    keys.give(Event("a", what="one"))

    class Other(msgspec.Struct):
        count: int

    from sparkguard.executor.state_codec import state_codec

    keyed = keys.processor._keyed
    assert keyed is not None
    keyed.encode, keyed.decode = state_codec(Other)
    with pytest.raises(StageFailedError, match=r"key 'a', version 1, cannot be read as Log.*count"):
        keys.give(Event("a", what="two"))


@dataclasses.dataclass
class Counted:
    """A state as a dataclass."""

    count: int
    at: datetime | None = None


class Typed(TypedDict):
    """A state as a typed dict."""

    count: int


class Model(pydantic.BaseModel):
    """A state as a pydantic model."""

    count: pydantic.PositiveInt
    price: Decimal = Decimal("1.10")


@pytest.mark.parametrize("kind", [Counted, Typed, Model, dict])
def test_states_of_every_kind(kind: Any) -> None:
    """What the function gets is what it gave, of the type that it declared."""
    got: list[Any] = []

    def step(state: Any, event: Event) -> Any:
        got.append(state)
        return sg.Update(state=kind(count=event.seq))

    keys = Keys(sg.stateful(key="k", state=kind, returns=Said)(step))
    for seq in (1, 2):
        keys.give(Event("a", seq=seq), Event("a", seq=seq + 2))
    assert got == [None, *(kind(count=seq) for seq in (1, 3, 2))]
    assert keys.letters() == []


def test_letters_that_cannot_be_stored_fail_the_task() -> None:
    """P2: then nothing of the task counts, its states neither."""
    keys = Keys(stage())
    keys.plan.plan.sinks["default"] = ListSink(fails=True)  # type: ignore[index]
    keys.give(Event("a", what="bad"))
    with pytest.raises(StageFailedError, match="told to fail"):
        keys.processor.close()


def test_a_row_is_not_put_off() -> None:
    """P1: nobody could send it back, so a handler of one's own that says so ends the query."""

    class Later:
        def decide(self, failure: sg.Failure) -> sg.Outcome:
            return sg.RetryLater(datetime.now(UTC), "default")

    keys = Keys(stage(), handler=Later())
    with pytest.raises(StageFailedError, match="and this is a row"):
        keys.give(Event("a", what="bad"))
    assert keys.letters() == []


def test_an_outage_that_passes_before_a_misfit() -> None:
    """P2: what a retry has made is taken once more, as it was; nothing is applied twice."""
    failed: list[str] = []

    def ask(state: Log | None, event: Event) -> sg.Update[Log, Said]:
        if event.what == "flaky" and not failed:
            failed.append(event.what)
            raise ConnectionError("refused")
        return log(state, event)

    keys = Keys(sg.stateful(key="k", state=Log, name="log")(ask))
    said = keys.give(*(Event("a", what=what) for what in ("flaky", "two", "misfit", "four")))
    assert keys.seen() == ["flaky", "two", "four"]
    assert [one["count"] for one in said] == [1, 2, 3]
    assert (keys.memory().version, len(keys.letters())) == (3, 1)


def test_repeated_events_do_not_start_the_task_timeout() -> None:
    """P8: only what fails for a transient cause does; a replay may begin with an hour of others."""
    calls: list[str] = []

    def ask(state: Log | None, event: Event) -> sg.Update[Log, Said]:
        calls.append(event.what)
        if calls.count("flaky") == 1:
            raise ConnectionError
        return sg.Update(state=state or Log())

    keys = Keys(sg.stateful(key="k", state=Log, returns=Said, sequence="seq")(ask))
    keys.give(Event("a", seq=2))
    keys.give(Event("a", seq=1))
    task = keys.work.task
    assert isinstance(task, ManualTask)
    task.clock[0] += 86_400
    keys.give(Event("a", seq=3, what="flaky"))
    assert (calls, keys.memory().version) == (["", "flaky", "flaky"], 2)


def test_an_outage_that_passes() -> None:
    """P7: it is tried again with the state as it was, and the event is applied once."""
    calls: list[int] = []

    def ask(state: Log | None, event: Event) -> sg.Update[Log, Said]:
        state = state or Log()
        state.seen.append(event.what)
        calls.append(len(state.seen))
        if len(calls) in {2, 3}:
            raise ConnectionError
        return sg.Update(state=state)

    keys = Keys(sg.stateful(key="k", state=Log, returns=Said)(ask))
    keys.give(*(Event("a", what=what) for what in "abc"))

    assert calls == [1, 2, 2, 2, 3]
    assert keys.seen() == ["a", "b", "c"]
    assert keys.counts() == {"entered": 3, "failed_attempts": 2, "retries": 2}


def test_a_long_key_and_many_events() -> None:
    """A key of 1 MB is one like others, shortened where it is shown; ten thousand are one batch."""
    long = "x" * 2**20
    keys = Keys(stage())
    keys.give(Event(long, what="bad"), key=long)
    shown = keys.sink.written[0].failure.state_key
    assert len(shown) < 250

    said = keys.give(*(Event("a", what="fine") for _ in range(10_000)))
    assert [one["count"] for one in said] == list(range(1, 10_001))
    assert keys.memory().version == 10_000


def test_what_comes_again_and_again_is_only_counted() -> None:
    """P5: each is in the ledger; described, and put before a handler, is the 1st, 10th, 100th."""
    keys = Keys(stage(sequence="seq"))
    keyed = keys.processor._keyed
    assert keyed is not None
    asked: list[str] = []
    failed = keyed.attempt.failed

    def ask(trouble: Any, read: Any) -> Any:
        asked.append(type(trouble.error).__name__)
        return failed(trouble, read)

    keyed.attempt.failed = ask  # type: ignore[method-assign,assignment]
    keys.give(*(Event("a", seq=seq) for seq in range(250)))
    keys.give(*(Event("a", seq=seq) for seq in range(250)))

    assert asked == ["StaleError"] * 3 + ["DuplicateError"]
    assert keys.counts() == {
        "entered": 500,
        "skipped": 250,
        "repeated": 250,
        "failed_attempts": 250,
    }
    assert [top.count for top in keys.work.tally.entry().top] == [249, 1]


def test_what_comes_again_is_a_letter_where_the_settings_say_so() -> None:
    """P5: only what is let go whatever it is may be counted without asking."""
    handlers = (("sparkguard.errors.StaleError", policy().handler),)
    keys = Keys(stage(sequence="seq"), by_exception=handlers)
    keys.give(Event("a", seq=20), *(Event("a", seq=20) for _ in range(20)))
    keys.give(*(Event("a", seq=seq) for seq in range(20)))

    assert keys.letters() == ["StaleError"] * 20
    assert keys.counts()["skipped"] == 20


def test_a_handler_that_lets_only_some_go_is_asked_each_time() -> None:
    """P1: it has let one go; what it says of the next is for it to say."""

    class Choosy:
        def decide(self, failure: sg.Failure) -> sg.Outcome:
            kept = b"keep" in (failure.record.value or b"")
            return sg.DeadLetter() if kept else sg.Continue()

    keys = Keys(stage(sequence="seq"), by_exception=(("sparkguard.errors.StaleError", Choosy()),))
    keys.give(Event("a", 5))
    keys.give(Event("a", 1), Event("a", 2, what="keep"), Event("a", 3))
    assert keys.letters() == ["StaleError"]
    assert keys.counts()["skipped"] == 2


def test_what_waits_outlives_a_forgotten_state() -> None:
    """P1: Spark forgets a state after its `ttl`; events that wait were counted nowhere yet."""
    keys = Keys(stage(sequence="seq", first=1, gap_timeout=timedelta(seconds=5)), ttl=1_000)
    keys.give(Event("a", seq=1), Event("a", seq=3))
    keys.give(Event("b", seq=1), Event("b", seq=3), key="b")
    for key in ("a", "b"):
        keys.tester.deleteState(MEMORY, key)
    keys.give(Event("b", seq=2), Event("b", seq=1), key="b")
    keys.at(NOW + 5_000)

    assert keys.memory() is None
    assert keys.letters() == ["GapError"]
    assert keys.seen("b") == [1, 2, 3]
    assert keys.counts()["dead_lettered"] == 1


@pytest.mark.parametrize("first", [-(2**63), 2**63 - 2])
def test_a_sequence_at_the_ends_of_its_range(first: int) -> None:
    """The lowest and the highest 64-bit number are stored, awaited, and over at the end."""
    keys = Keys(stage(sequence="seq", first=first))
    keys.give(Event("a", seq=first + 1))
    assert keys.memory().waiting[0][0] == first + 1
    keys.give(Event("a", seq=first), Event("a", seq=first))
    keys.give(Event("a", seq=first + 1), Event("a", seq=2**63 - 1))

    assert keys.seen() == [first, first + 1]
    assert keys.counts()["repeated"] == (2 if first < 0 else 3)
    assert len(keys.memory().waiting) == (1 if first < 0 else 0)


def test_what_a_function_may_not_return() -> None:
    """No update, or a state, timer or emit of another type: the event fails and changes nothing."""
    bad: list[Any] = [
        None,
        Log(),
        sg.Update(state=3),
        sg.Update(state=object()),
        sg.Update(state=Log(), timer=5),  # type: ignore[arg-type]
        sg.Update(state=Log(), emit=3),  # type: ignore[arg-type]
    ]

    def step(state: Log | None, event: Event) -> Any:
        return bad[event.seq] if event.seq is not None else sg.Update(state=Log(["good"]))

    timed = sg.stateful(key="k", state=Log, returns=Said, on_timer=log)
    keys = Keys(timed(step))
    keys.give(Event("a"), *(Event("a", seq=seq) for seq in range(len(bad))))

    assert keys.seen() == ["good"]
    assert keys.memory().version == 1
    assert keys.letters() == ["TypeError"] * len(bad)


def test_a_clock_that_goes_back() -> None:
    """Nothing fires early or is lost: what is due waits until the clock is there again."""
    calls: list[datetime] = []

    def remind(state: Log | None, now: datetime) -> sg.Update[Log, Said]:
        calls.append(now)
        return sg.Update(state=state)

    keys = Keys(stage(sequence="seq", first=1, on_timer=remind, gap_timeout=timedelta(seconds=9)))
    keys.give(Event("a", seq=1, what="later"), Event("a", seq=3))
    keys.tester._currentProcessingTimeMs = NOW - 60_000
    keys.give(Event("a", seq=4))
    assert keys.at(NOW - 60_000 + 8_999) == []
    assert len(keys.memory().waiting) == 2
    keys.at(NOW - 60_000 + 9_000)
    assert (keys.letters(), calls) == (["GapError", "GapError"], [])
    keys.at(NOW + 10_000)
    assert [one.timestamp() * 1000 for one in calls] == [NOW + 10_000]


def test_what_a_function_does_to_its_event() -> None:
    """P4: it has a row of its own, and of a struct the lists and dicts are its own too."""
    for kind in (dict, dict[str, Any], Loose, Row):

        def spoil(state: Log | None, event: Any) -> Any:
            """Takes what it is annotated with."""

        spoil.__annotations__["event"] = kind
        keyed = Keys(sg.stateful(key="k", state=Log, returns=Said)(spoil)).processor._keyed
        assert keyed is not None
        row = {"what": "one", "tags": ["x"]}
        event = keyed_event(Row(**row) if kind is Row else row)
        given = keyed.given(event)
        if isinstance(given, dict):
            given["what"] = "spoilt"
        (given["tags"] if isinstance(given, dict) else given.tags).append("spoilt")
        assert event.row == (Row(**row) if kind is Row else row)
        assert event.record(kafka=False).value == b'{"what": "one", "tags": ["x"]}'


class Loose(msgspec.Struct):
    what: str
    tags: Any


def keyed_event(row: Any) -> KeyedEvent:
    """An event that was packed with nothing but a row."""
    return KeyedEvent.unpacked(pickling.pack((row, None, (None, None, None), (0, 0))))


def test_a_row_that_changed_is_no_row_of_a_letter() -> None:
    """P4: through the processor: the letter has what came, whatever the function made of it."""
    seen: list[str] = []

    def spoil(state: Log | None, event: dict) -> Any:  # type: ignore[type-arg]
        event["what"] += "!"
        seen.append(event["what"])
        raise ConnectionError if len(seen) < 3 else ValueError

    keys = Keys(sg.stateful(key="k", state=Log, returns=Said)(spoil))
    keys.give(Event("a", what="one"))

    assert seen == ["one!"] * 3
    assert keys.letters() == ["ValueError"]
    assert b'"what": "one"}' in (keys.sink.stored[0].failure.record.value or b"")


def test_the_first_states_of_a_task_are_read_back() -> None:
    """A type that changes what is stored is a failure from its first event on."""

    class Twice(pydantic.BaseModel):
        count: int

        @pydantic.field_validator("count")
        @classmethod
        def twice(cls, value: int) -> int:
            return value * 2

    @sg.stateful(key="k", state=Twice, returns=Said)
    def step(state: Any, event: Event) -> Any:
        return sg.Update(state=Twice(count=1))

    keys = Keys(step)
    keys.give(*(Event("a") for _ in range(20)))

    assert keys.letters() == ["TypeError"] * 20
    assert keys.memory() is None
    assert "'count' of a Twice reads back" in keys.sink.stored[0].failure.message


def test_the_rest_of_them_are_not() -> None:
    """Reading back each time would cost as much as the function."""
    keys = Keys(stage())
    keyed = keys.processor._keyed
    assert keyed is not None
    for _ in range(20):
        keys.give(Event("a"))
    assert keyed.encode == keyed._encode
