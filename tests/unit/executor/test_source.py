import json
import math
from datetime import date, time
from decimal import Decimal

import pyarrow as pa
import pytest

from sparkguard.executor.plan import Layout
from sparkguard.executor.source import Source, as_json

FAR = 1_700_000_000_000_000_000
"""Microseconds of the year 55840, which no datetime holds."""

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
LAYOUT = Layout(
    key=0, value=1, headers=2, timestamp=3, topic=4, partition=5, offset=6, others=(("more", 7),)
)


def batch(rows: int) -> pa.RecordBatch:
    """Rows of which some are odd: nulls, no UTF-8, a date that Python has not."""
    found = [None, [], [("a", b"1"), ("a", None)], [("b", b"\xff")]]
    topics = pa.array([b"orders", b"\xff"] * rows).slice(0, rows)
    times = [None if n % 3 else n for n in range(rows - 1)]
    return pa.RecordBatch.from_arrays(
        [
            pa.array([None if n % 5 == 0 else f"k{n}" for n in range(rows)]),
            pa.array([b"", None, b"\xff"] * rows).slice(0, rows),
            pa.array([found[n % 4] for n in range(rows)], HEADERS),
            pa.array([*times, FAR], pa.int64()).cast(pa.timestamp("us", "UTC")),
            pa.Array.from_buffers(pa.string(), rows, topics.buffers()),
            pa.array([n % 2 for n in range(rows)], pa.int32()),
            pa.array(range(rows), pa.int64()),
            pa.array([n / 2 for n in range(rows)]),
        ],
        ["key", "value", "headers", "timestamp", "topic", "partition", "offset", "more"],
    )


@pytest.mark.parametrize("wanted", [range(3), range(0, 40, 2), range(40), range(39, 0, -3)])
def test_several_records_are_those_of_each_row(wanted: range) -> None:
    """P17: reading many rows at once gives what reading each alone does, odd ones included."""
    source = Source(batch(40), LAYOUT)

    assert source.records(wanted) == [source.record(row) for row in wanted]


def test_a_part_of_a_larger_batch() -> None:
    """The same where the batch is a slice of another, so that its buffers begin elsewhere."""
    source = Source(batch(40).slice(15, 20), LAYOUT)

    assert source.records(range(20)) == [source.record(row) for row in range(20)]
    assert source.record(0).offset == 15


def test_keys_of_a_map_that_are_no_text() -> None:
    """P17: dates, bytes, decimals and tuples become text; no row stops a letter."""
    keys = [date(2026, 1, 2), b"\xff", Decimal("1.5"), time(1, 2), (1, b"x"), math.nan, 7, None]
    told = json.loads(as_json({"m": {key: n for n, key in enumerate(keys)}}))["m"]

    assert list(told)[:4] == ["2026-01-02", "/w==", "1.5", "01:02:00"]
    assert list(told.values()) == list(range(len(keys)))
