"""Rows on their way to their key: packed, whatever is in them, and in order."""

from __future__ import annotations

from datetime import UTC, datetime
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkguard import pickling
from sparkguard.core.failure import Category
from sparkguard.core.keyed import Keyed
from sparkguard.core.shape import Kind, Shape
from sparkguard.core.versions import Facts, Rules
from sparkguard.executor import keyed_plan
from sparkguard.executor.keyed_plan import Event, KeyedPlan, Packer, Unreadable, in_order, pack
from sparkguard.executor.plan import ORIGIN_COLUMN, Layout, Plan, Step
from sparkguard.executor.rows import DictReader
from tests.flow.made import COLUMNS, policy

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def packed(batch: pa.RecordBatch, rows: int, **more: Any) -> list[Event]:
    """The events of a batch whose first columns are the row."""
    return [Event.unpacked(one) for one in Packer(plan_of(rows, **more), 7).batch(batch)]


def plan_of(rows: int, **more: Any) -> KeyedPlan:
    """A stage over events whose first columns are the row."""
    step = Step(name="s", kind="stateful", category=Category.PROCESSING, policy=policy())
    plan = Plan(
        app="app",
        flow="s",
        use="",
        steps=(step,),
        layout=Layout(rows=rows),
        shape=Shape(kind=Kind.LONG),
    )
    columns = more.pop("columns", (None, None, None))
    return KeyedPlan(
        plan=plan,
        keyed=Keyed(key="key", state=dict, rules=Rules()),
        read=more.pop("read", DictReader()),
        convert=None,
        columns=columns,
        **more,
    )


def test_a_record_of_kafka() -> None:
    """Its letter has the record itself, and it is ordered by its time, then by its place."""
    rows = [
        {
            "key": b"k",
            "value": b"\xff",
            "headers": [{"key": "h", "value": b"1"}],
            "topic": "t",
            "partition": partition,
            "offset": offset,
            "timestamp": NOON.replace(minute=minute),
        }
        for minute, partition, offset in ((1, 0, 5), (0, 1, 9), (0, 0, 4), (0, 0, 3))
    ]
    events = packed(pa.RecordBatch.from_pylist(rows, COLUMNS), len(COLUMNS), kafka=True)
    ordered = [event.record(kafka=True) for event, _ in in_order([(one, b"") for one in events])]

    assert [(one.partition, one.offset) for one in ordered] == [(0, 3), (0, 4), (1, 9), (0, 5)]
    assert (ordered[0].key, ordered[0].value, ordered[0].columns) == (b"k", b"\xff", None)
    assert ordered[0].headers == (("h", b"1"),)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=9), st.randoms())
def test_the_order_of_a_partition(minutes: list[int], chance: Random) -> None:
    """Offsets decide, however producers' clocks differ and in whatever order Spark hands over."""
    origins = [
        {"topic": "t", "partition": 0, "offset": offset, "timestamp": NOON.replace(minute=minute)}
        for offset, minute in enumerate(minutes)
    ]
    events = [(Event({}, origin, Facts(), (0, 0)), b"") for origin in origins]
    chance.shuffle(events)
    ordered = [event.origin for event, _ in in_order(events)]
    assert ordered == origins


def test_a_record_whose_time_python_cannot_hold() -> None:
    """Its letter is still the record: key, value and coordinates."""
    times = pa.array([2**60], pa.int64()).cast(pa.timestamp("us"))
    columns = {"key": [b"k"], "value": [b"v"], "topic": ["t"], "partition": [1], "offset": [2]}
    batch = pa.RecordBatch.from_pydict(columns).append_column("timestamp", times)
    (event,) = packed(batch, batch.num_columns, kafka=True)
    record = event.record(kafka=True)
    assert (record.key, record.value, record.coordinates) == (b"k", b"v", "t[1]@2")


def test_a_record_under_other_names() -> None:
    """A type may call the columns as it likes; the letter is the record all the same."""
    batch = pa.RecordBatch.from_pydict(
        {"key": [b"k"], "value": [b"v"], "topic": ["t"], "partition": [1], "offset": [2]}
    )
    read = DictReader(aliases=(("value", "Value"), ("key", "Key")))
    (event,) = packed(batch, batch.num_columns, kafka=True, read=read)
    record = event.record(kafka=True)
    assert (record.key, record.value, record.coordinates) == (b"k", b"v", "t[1]@2")


def test_a_row_and_its_origin() -> None:
    """What a row says of itself, where it came from, and its place where nothing else tells."""
    origin = {"topic": "t", "partition": 1, "offset": 2, "timestamp": NOON}
    table = pa.RecordBatch.from_pylist(
        [{"key": "a", "number": 5, ORIGIN_COLUMN: origin}, {"key": None, "number": None}]
    )
    first, second = packed(table, 2, columns=(1, None, None))

    assert first.row == {"key": "a", "number": 5}
    assert (first.facts, second.facts) == (Facts(sequence=5), Facts())
    record = first.record(kafka=False)
    assert (record.value, record.coordinates) == (b'{"key": "a", "number": 5}', "t[1]@2")
    assert (first.place, second.place) == ((7, 0), (7, 1))
    assert second.record(kafka=False).value == b'{"key": null, "number": null}'


def test_a_row_that_python_cannot_hold() -> None:
    """It is packed as what it is; the others are packed as always."""
    far = pa.array([0, 2**60], pa.int64()).cast(pa.timestamp("us"))
    batch = pa.RecordBatch.from_arrays([pa.array(["a", "b"]), far], ["key", "at"])
    good, bad = packed(batch, 2)

    assert good.row["key"] == "a"
    assert isinstance(bad.row, Unreadable)
    assert "'at'" in bad.row.said
    assert (bad.record(kafka=False).value or b"").startswith(b'{"key": "b", "at": ')


def test_events_of_one_key_travel_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each arrives once, its key's in order, in rows of bounded size; some are sent on the way."""
    monkeypatch.setattr(keyed_plan, "_HELD", 5_000)
    monkeypatch.setattr(keyed_plan, "_BUNDLE", 500)
    keys = [None if n % 7 == 0 else f"k{n % 5}" for n in range(300)]
    table = pa.table({"key": pa.array(keys), "n": pa.array(range(300))})
    batches = list(pack(pickling.dumps(plan_of(2)), table.to_batches(max_chunksize=50)))

    found: dict[Any, list[int]] = {}
    for batch in batches:
        for row in batch.to_pylist():
            assert len(row["packed"]) < 700
            events = [Event.unpacked(one) for one in pickling.unpack(row["packed"])]
            found.setdefault(row["key"], []).extend(event.row["n"] for event in events)
    assert found == {key: [n for n in range(300) if keys[n] == key] for key in {*keys}}
    assert 1 < len(batches) < 6
    assert sum(map(len, batches)) < 150


def test_a_key_that_is_no_text() -> None:
    """Python cannot hold it: the event has no key then, and its row says why."""
    raw = pa.array([b"a", b"\xff", None], pa.binary())
    text = pa.Array.from_buffers(pa.string(), 3, raw.buffers())
    table = pa.RecordBatch.from_arrays([text, pa.array([1, 2, 3])], ["key", "n"])
    (batch,) = pack(pickling.dumps(plan_of(2, columns=(None, 0, None))), [table])

    events = {
        row["key"]: [Event.unpacked(one) for one in pickling.unpack(row["packed"])]
        for row in batch.to_pylist()
    }
    assert [event.facts.event_id for event in events["a"]] == ["a"]
    assert [event.facts.event_id for event in events[None]] == [b"\xff", None]
    assert isinstance(events[None][0].row, Unreadable)
