"""What becomes of a record that is to come again later."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest

import sparkguard as sg
from sparkguard.core.failure import Failure
from sparkguard.core.policy import Budget
from sparkguard.core.replay import sent_back
from sparkguard.errors import StageFailedError
from sparkguard.executor.plan import Plan
from tests.flow.made import Decides, ListSink, plan, policy, records, run

DUE = datetime.now(UTC) + timedelta(hours=1)


@sg.map
def number(value: bytes) -> int:
    """Even numbers only."""
    if int(value) % 2:
        raise ValueError(int(value))
    return int(value)


raw = sg.deserialize(sg.Raw(), name="raw")


def later(failure: Failure) -> sg.RetryLater:
    """An hour from now."""
    return sg.RetryLater(DUE, "retry")


def job(retry: ListSink, budget: Budget | None = None) -> Plan:
    """Puts odd numbers off."""
    policies = {"number": policy(Decides(later), budget=budget)}
    return plan(raw, number, policies=policies, sinks={"default": ListSink(), "retry": retry})


def values(numbers: Sequence[int]) -> list[bytes]:
    """The numbers as text."""
    return [b"%d" % n for n in numbers]


def test_it_is_stored_with_its_due_time_and_counted() -> None:
    """P1: in = out + delayed, and what is stored is the whole record with its due time."""
    retry = ListSink()
    ran = run(job(retry), records(values(range(10))))
    assert ran.rows == [0, 2, 4, 6, 8]
    assert ran.letters == []
    assert [letter.record.value for letter in retry.stored] == values([1, 3, 5, 7, 9])
    assert {letter.due for letter in retry.stored} == {DUE}
    assert len({letter.id for letter in retry.stored}) == 5
    assert ran.account.total("delayed") == 5
    assert ran.account.balanced
    back = sent_back(retry.stored[0], "retry", retry=True)
    assert (back.key, back.value, back.offset) == (b"\xffk1", b"1", 1)


def test_a_task_ends_only_when_it_is_stored() -> None:
    """P2: what the retry topic does not acknowledge fails the task; nothing is counted."""
    with pytest.raises(StageFailedError, match="could not store its letters"):
        run(job(ListSink(fails=True)), records(values([0, 1])))


def test_a_flood_uses_up_the_budget() -> None:
    """P5: an outage does not move the whole topic into the retry topic."""
    with pytest.raises(StageFailedError, match="budget"):
        run(job(ListSink(), Budget(max_ratio=0.1, window=10)), records(values(range(1, 100, 2))))
