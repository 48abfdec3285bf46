"""The values: frozen, picklable, every field of them."""

import copy
import pickle
from dataclasses import FrozenInstanceError, fields, is_dataclass, replace
from datetime import UTC, datetime
from typing import Any

import pytest

from sparkguard.core.failure import Category, Cause, Failure
from sparkguard.core.ledger import Account, Entry, Span, Top
from sparkguard.core.letter import Letter
from sparkguard.core.outcome import Continue, DeadLetter, Fail, Restart, RetryLater
from sparkguard.core.policy import Budget, Handler, Policy, Retry
from sparkguard.core.record import Record
from sparkguard.handlers.dead_letter import DeadLetterHandler
from sparkguard.handlers.fail import FailHandler
from sparkguard.handlers.log_and_continue import LogAndContinueHandler
from sparkguard.handlers.restart import RestartHandler
from tests.unit.core.made import FAILURE, RECORD, unset

DUE = datetime.now(UTC)

SPAN = Span(topic="orders", partition=1, first=2, last=3)
TOP = Top(
    stage="price",
    fingerprint="f",
    cause="poison",
    exception_type="ValueError",
    message="m",
    coordinates="orders[1]@2",
    count=3,
)
COUNTS = {"price": {"entered": 3}}
POLICY = Policy(
    handler=DeadLetterHandler(sink="topic"),
    on_transient=RestartHandler(),
    on_programming=FailHandler(),
    on_fatal=FailHandler(),
    on_crash=LogAndContinueHandler(),
    by_exception=(("orders.Unpriced", LogAndContinueHandler()),),
    classify=(("orders.Down", Cause.TRANSIENT),),
    sink="topic",
    retry=Retry(max_attempts=3, initial=1, multiplier=3, maximum=5),
    task_timeout=7,
    record_timeout=0.5,
    budget=Budget(max_ratio=0.2, window=5, then="restart"),
    on_null="skip",
    redact=("x",),
    isolate=True,
    max_calls=9,
    writes="upsert",
    whole_batch="skip",
)
VALUES: list[Any] = [
    RECORD,
    FAILURE,
    POLICY,
    POLICY.retry,
    POLICY.budget,
    Letter(id="0" * 32, failure=FAILURE, replays=2, version="1", overflow="s3://x", due=DUE),
    Continue(),
    DeadLetter("topic"),
    Fail("why"),
    Restart("why"),
    RetryLater(DUE, "retry"),
    SPAN,
    TOP,
    Entry(
        flow="orders",
        use="u",
        query_id="q",
        run_id="r",
        batch_id=1,
        stage_id=2,
        partition=3,
        attempt=4,
        part="p",
        spans=(SPAN,),
        records_in=4,
        records_out=3,
        rows_out=5,
        stages=COUNTS,
        top=(TOP,),
        failed="why",
        carrier="entries/1",
    ),
    Account(
        flow="orders",
        query_id="q",
        batch_id=1,
        records_in=4,
        records_out=3,
        rows_out=5,
        stages=COUNTS,
        top=(TOP,),
        counts_lost=True,
        source=True,
        own=True,
    ),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("protocol", [2, pickle.HIGHEST_PROTOCOL])
def test_pickles_with_every_field(value: Any, protocol: int) -> None:
    """What decides must travel: every field comes back, by pickle and copy."""
    for back in (
        pickle.loads(pickle.dumps(value, protocol)),
        copy.deepcopy(value),
    ):
        assert type(back) is type(value)
        for field in fields(value):
            if field.name == "exception":
                assert back.exception is None
            elif field.compare:
                assert getattr(back, field.name) == getattr(value, field.name), field.name


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_examples_fill_every_field(value: Any) -> None:
    """A new field with a default must be given here too, or its round trip is not tested."""
    assert unset(value) == []


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_frozen(value: Any) -> None:
    """A value is a value: no field can be set, no attribute added."""
    assert is_dataclass(value)
    for name in [field.name for field in fields(value)] + ["other"]:
        with pytest.raises((FrozenInstanceError, AttributeError, TypeError)):
            setattr(value, name, 1)


def test_unpicklable_exception_stays_behind() -> None:
    """The live exception never crosses: one that cannot be pickled does not hurt the failure."""

    class OddError(Exception):
        def __reduce__(self) -> Any:
            raise RuntimeError

    odd = replace(FAILURE, exception=OddError())
    assert odd == FAILURE
    assert pickle.loads(pickle.dumps(odd)) == FAILURE
    assert "OddError" not in repr(odd)


@pytest.mark.parametrize(
    ("record", "text"),
    [
        (RECORD, "orders[3]@42"),
        (Record(topic="t", partition=0, offset=0), "t[0]@0"),
        (Record(file="s3://x"), "s3://x"),
        (Record(), ""),
    ],
)
def test_coordinates(record: Record, text: str) -> None:
    """Topic, partition and offset, else the file, else nothing."""
    assert record.coordinates == text


def test_failure_names_its_exception() -> None:
    """The nearest class names the failure."""
    assert FAILURE.exception_type == "orders.Unpriced"
    bare = Failure(stage="s", category=Category.PRODUCTION, cause=Cause.FATAL, exception_types=())
    assert bare.exception_type == ""


def test_handlers_are_handlers() -> None:
    """A handler is anything with `decide`."""
    assert isinstance(POLICY.handler, Handler)
    assert not isinstance(object(), Handler)
