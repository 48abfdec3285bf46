"""What waits in the state of the retry service: bundles, and when they leave."""

from itertools import chain
from typing import Any

import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.streaming.tws_tester import TwsTester

from sparkguard.retry_service.waiting import MESSAGES, Waiting, bundled, messages_in

SLOT = 1_000


def batch(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    """Messages with their bucket and slot."""
    schema = MESSAGES.append(pa.field("bucket", pa.int32())).append(pa.field("slot", pa.int64()))
    return pa.RecordBatch.from_pylist(rows, schema=schema)


def test_a_bundle_holds_what_shares_a_slot() -> None:
    """Every message is in the bundle of its bucket and slot, as it was, headers and nulls too."""
    rows: list[dict[str, Any]] = [
        {
            "key": None if n % 3 else b"\xff%d" % n,
            "value": None if n % 5 == 0 else b"%d" % n,
            "headers": [{"key": "h", "value": None}] * (n % 3) if n % 7 else None,
            "offset": n,
            "bucket": n % 2,
            "slot": n % 4 * 1000,
        }
        for n in range(40)
    ]
    (out,) = bundled([batch(rows)])
    found = out.to_pylist()
    assert [(one["bucket"], one["slot"]) for one in found] == [
        (0, 0), (0, 2000), (1, 1000), (1, 3000)
    ]  # fmt: skip
    for one in found:
        mine = [row for row in rows if (row["bucket"], row["slot"]) == (one["bucket"], one["slot"])]
        read = messages_in(pa.py_buffer(one["bundle"])).to_pylist()
        assert [{name: row.get(name) for name in MESSAGES.names} for row in mine] == read


def test_no_bundle_is_large() -> None:
    """A megabyte or so, but for a message that is larger alone; none is cut, none is lost."""
    rows = [{"value": b"x" * 300_000, "offset": n, "bucket": 0, "slot": 0} for n in range(9)]
    rows.append({"value": b"x" * 3_000_000, "offset": 9, "bucket": 0, "slot": 0})
    (out,) = bundled([batch(rows)])
    bundles = [messages_in(pa.py_buffer(one["bundle"])) for one in out.to_pylist()]
    offsets = [offset for one in bundles for offset in one.column("offset").to_pylist()]
    assert offsets == [*range(10)]
    assert all(one.nbytes < 1_100_000 or len(one) == 1 for one in bundles)
    assert [*bundled([batch([])])] == []


def test_it_leaves_when_its_slot_is_over() -> None:
    """Not before, once, and what comes for a slot that is over leaves at once."""
    tester = TwsTester(Waiting(), timeMode="ProcessingTime")
    tester.setProcessingTime(SLOT - 500)
    assert tester.test(SLOT, [Row(bundle=b"a"), Row(bundle=b"b")]) == []
    assert tester.test(SLOT, [Row(bundle=b"c")]) == []
    assert tester.setProcessingTime(SLOT - 1) == []
    assert left(tester.setProcessingTime(SLOT + 1)) == [b"a", b"b", b"c"]
    assert tester.peekListState("held", SLOT) == []
    assert tester.setProcessingTime(SLOT + 1000) == []
    assert left(tester.test(SLOT, [Row(bundle=b"d")])) == [b"d"]


def test_what_is_too_much_for_a_batch_leaves_in_the_next() -> None:
    """After an outage everything is due; each batch takes its part, and all of it leaves."""
    tester = TwsTester(Waiting(limit=10), timeMode="ProcessingTime")
    tester.setProcessingTime(1)
    for slot in (100, 200, 300):
        assert tester.test(slot, [Row(bundle=b"%d" % slot * 4)]) == []
    taken = [left(tester.setProcessingTime(now)) for now in (1000, 1001, 1002, 1003)]
    assert sorted(chain(*taken)) == [b"%d" % slot * 4 for slot in (100, 200, 300)]
    assert len(taken[0]) in {1, 2}


def left(rows: list[Row]) -> list[bytes]:
    """The bundles in what left."""
    return [bytes(row.bundle) for row in rows]
