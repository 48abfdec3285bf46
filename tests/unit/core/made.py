"""Records, failures and entries with every field filled in."""

from dataclasses import fields, replace
from datetime import UTC, datetime
from typing import Any

from sparkguard.core.failure import Category, Cause, Failure
from sparkguard.core.ledger import Entry, Span
from sparkguard.core.record import Record

NOON = datetime(2026, 5, 17, 12, tzinfo=UTC)
RECORD = Record(
    key=b"\xffk",
    value=b"\x00v",
    headers=(("a", b"1"), ("a", None)),
    timestamp=NOON,
    topic="orders",
    partition=3,
    offset=42,
    file="s3://x/y.json",
    columns='{"day":1}',
)
FAILURE = Failure(
    stage="price",
    category=Category.PROCESSING,
    cause=Cause.POISON,
    exception_types=("orders.Unpriced", "ValueError", "Exception", "BaseException"),
    message="no price",
    trace="Traceback …",
    fingerprint="0123456789abcdef",
    attempts=3,
    first_failed_at=NOON,
    last_failed_at=NOON,
    timed_out=True,
    record=RECORD,
    app="shop",
    flow="orders",
    query_name="q",
    query_id="id",
    batch_id=7,
    path="items[2]",
    payload="row",
    state_key="k-1",
    state_version=3,
    state="{}",
    exception=ValueError("no price"),
)


def unset(value: Any) -> list[str]:
    """The fields of a dataclass value that still have their default."""
    return [field.name for field in fields(value) if getattr(value, field.name) == field.default]


def failure(**changes: Any) -> Failure:
    """`FAILURE` with changes; those of the record by the record's field names."""
    of_record = {field.name for field in fields(Record)}
    record = {name: changes.pop(name) for name in [*changes] if name in of_record}
    return replace(FAILURE, record=replace(RECORD, **record), **changes)


def entry(records: int, *spans: Span, **changes: Any) -> Entry:
    """An entry of the flow 'orders' in batch 1 with so many records, all put out."""
    facts: dict[str, Any] = {"flow": "orders", "query_id": "q", "run_id": "r1", "batch_id": 1}
    counts = {"price": {"entered": records}}
    facts |= {"records_in": records, "records_out": records, "rows_out": records}
    return Entry(spans=spans, **{**facts, "stages": counts, **changes})
