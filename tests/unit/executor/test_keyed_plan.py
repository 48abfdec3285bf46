"""Rows on their way to their key: packed, whatever is in them, and in order."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from sparkguard.core.failure import Category
from sparkguard.core.keyed import Keyed
from sparkguard.core.shape import Kind, Shape
from sparkguard.core.versions import Facts, Rules
from sparkguard.executor.keyed_plan import Event, KeyedPlan, Packer, Unreadable
from sparkguard.executor.plan import ORIGIN_COLUMN, Layout, Plan, Step
from sparkguard.executor.rows import DictReader
from tests.flow.made import COLUMNS, policy

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def packed(batch: pa.RecordBatch, rows: int, **more: Any) -> list[Event]:
    """The events of a batch whose first columns are the row."""
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
    keyed = KeyedPlan(
        plan=plan,
        keyed=Keyed(key="key", state=dict, rules=Rules()),
        read=DictReader(),
        convert=None,
        columns=columns,
        **more,
    )
    return [Event.unpacked(one) for one in Packer(keyed, 7).batch(batch)]


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
    ordered = [event.record(kafka=True) for event in sorted(events, key=Event.order)]

    assert [(one.partition, one.offset) for one in ordered] == [(0, 3), (0, 4), (1, 9), (0, 5)]
    assert (ordered[0].key, ordered[0].value, ordered[0].columns) == (b"k", b"\xff", None)
    assert ordered[0].headers == (("h", b"1"),)


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
