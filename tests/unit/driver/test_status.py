"""What a state tells, document by document."""

import os
from pathlib import Path

import pytest

from sparkguard.core.ledger import Account
from sparkguard.driver.accounts import Accounts
from sparkguard.driver.breaches import Breaches
from sparkguard.driver.journal import File, Journals, Plan
from sparkguard.driver.restarts import Limit
from sparkguard.driver.state import State
from sparkguard.driver.status import Status, status
from sparkguard.errors import StageFailedError


@pytest.fixture
def state(tmp_path: Path) -> State:
    """A state in which one batch is counted."""
    found = State(str(tmp_path))
    Accounts(found).store([Account(flow="main", query_id="q", batch_id=3, records_in=5)])
    return found


def look(state: State) -> Status:
    """With the limits that are built in."""
    return status(state, Limit())


def test_flows(state: State) -> None:
    """A flow's total, and its newest batch with its time."""
    Accounts(state).store([Account(flow="main", query_id="q", batch_id=4, records_in=2)])
    (flow,) = look(state).flows
    assert flow.total.records_in == 7
    assert flow.last is not None
    assert (flow.last.batch_id, flow.last.records_in) == (4, 2)
    assert flow.stored_at is not None
    assert not look(state).needs_a_person


def test_breach(state: State, tmp_path: Path) -> None:
    """P5: a breach needs a person until a batch is counted after it."""
    breach = StageFailedError("over", {"sentence": "Stage 'price' is over its budget."})
    Breaches(state).put("q", "run", breach)
    document = tmp_path / "ledger" / "main.q.json"
    os.utime(document, (1, 1))
    assert look(state).breaches == ("Stage 'price' is over its budget.",)
    assert look(state).needs_a_person
    os.utime(document)
    os.utime(tmp_path / "breaches" / "q.json", (1, 1))
    assert not look(state).needs_a_person


def test_what_is_open(state: State) -> None:
    """Isolations, care and the stop marker are said, and go on by themselves."""
    plan = Plan(
        token="t",
        batch_id=8,
        folder="f",
        schema="{}",
        files=(File(name="a", first=0, rows=10),),
    )
    journal = Journals(state).begin("store/x", "q", plan)
    journal.written()
    Breaches(state).careful("q")
    state.request_stop()
    state.store("restarts/build", {"since_commit": 1, "times": []})
    found = look(state)
    assert found.isolations == ("store/x, batch 8 of query q: 5 of 10 rows are done",)
    assert (found.careful, found.stop_requested) == (("q",), True)
    assert [(it.query, it.since_commit, it.refusal) for it in found.restarts] == [
        ("build", 1, None)
    ]
    assert not found.needs_a_person
