from pathlib import Path
from typing import Any

import pytest

from sparkguard.core.failure import Category, Cause, Failure
from sparkguard.core.ledger import Entry
from sparkguard.core.policy import Budget
from sparkguard.core.watch import BatchFinished
from sparkguard.driver.accounts import Accounts
from sparkguard.driver.breaches import Breaches
from sparkguard.driver.ledger import Ledger
from sparkguard.driver.settle import Settler
from sparkguard.driver.state import State
from sparkguard.errors import StageFailedError
from sparkguard.hookspecs import Members, Watcher
from tests.unit.driver.desks import Box, entry, totals

TENTH = Budget(max_ratio=0.1, window=100)


class Office:
    """A settler, what its state has, and what its watchers were told."""

    def __init__(self, folder: Path, **budgets: Budget | None) -> None:
        self.told: list[Any] = []
        watcher = Watcher(plugin="test", hook="on_batch_finished", call=self.told.append)
        state = State(str(folder))
        self.box = Box()
        self.accounts = Accounts(state)
        self.accounts.listen(self.box)  # type: ignore[arg-type]
        self.ledger = Ledger(state)
        self.settler = Settler("app", self.accounts, Members(watchers=(watcher,)), Breaches(state))
        self.settler.watch("orders", budgets)

    def batch(self, batch_id: int, *, dead: int = 0, skipped: int = 0, **changes: Any) -> Entry:
        """A batch of fifty records was evaluated."""
        first = 50 * batch_id
        made = entry(first, first + 49, batch_id=batch_id, dead=dead, skipped=skipped, **changes)
        self.box.append(made)
        return made


def office(folder: Path, budget: Budget | None = TENTH) -> Office:
    """A settler that judges one stage."""
    return Office(folder, decode=budget)


def test_settle_tells(tmp_path: Path) -> None:
    """P20: a batch is stored, then told, once."""
    one = office(tmp_path)
    one.batch(0, dead=2)
    one.settler.settle("q", 0, "orders query")
    one.settler.settle("q", 0, "orders query", committed=True)
    (event,) = one.told
    assert isinstance(event, BatchFinished)
    assert (event.app, event.flow, event.query_name) == ("app", "orders", "orders query")
    assert totals(event.account) == (50, 48, 2)
    assert event.account in one.ledger.batches()


def test_a_watcher_that_raises(tmp_path: Path) -> None:
    """P20: a watcher cannot hurt a batch."""
    one = office(tmp_path)

    def raises(_: Any) -> None:
        raise SystemExit

    watcher = Watcher(plugin="bad", hook="on_batch_finished", call=raises)
    settler = Settler(
        "app", one.accounts, Members(watchers=(watcher,)), Breaches(State(str(tmp_path)))
    )
    one.batch(0)
    settler.settle("q", 0)
    assert len(one.ledger.batches()) == 1


def test_budget_across_batches(tmp_path: Path) -> None:
    """P5: a budget is judged over batches, before the commit; nothing of the batch is stored."""
    one = office(tmp_path)
    for batch_id in range(2):
        one.batch(batch_id, dead=3, skipped=2)
        one.settler.settle("q", batch_id)
    one.batch(2, dead=6)
    with pytest.raises(
        StageFailedError, match="Stage 'decode' failed 11 of its last 100"
    ) as caught:
        one.settler.settle("q", 2)
    assert caught.value.action == "fail"
    assert caught.value.facts["batch_id"] == 2
    assert [account.batch_id for account in one.ledger.batches()] == [0, 1]
    assert len(one.told) == 2


def test_exactly_the_budget(tmp_path: Path) -> None:
    """P5: what a budget allows is allowed."""
    one = office(tmp_path)
    for batch_id in range(9):
        one.batch(batch_id, dead=5)
        one.settler.settle("q", batch_id)
    assert totals(one.ledger.total("orders")) == (450, 405, 45)


def test_no_budget(tmp_path: Path) -> None:
    """A stage without a budget may fail all it gets."""
    one = office(tmp_path, None)
    for batch_id in range(3):
        one.batch(batch_id, dead=50)
        one.settler.settle("q", batch_id)
    assert totals(one.ledger.total("orders")) == (150, 0, 150)


def test_restart_and_replay(tmp_path: Path) -> None:
    """P5: `then: restart` says so; the replay is judged anew, not on top of itself."""
    one = office(tmp_path, Budget(max_ratio=0.1, window=100, then="restart"))
    one.batch(0, dead=5)
    one.settler.settle("q", 0)
    one.batch(1, dead=8)
    with pytest.raises(StageFailedError) as caught:
        one.settler.settle("q", 1)
    assert (caught.value.action, caught.value.facts["cause"]) == ("restart", "transient")
    one.batch(1, dead=8, run_id="r2")
    one.settler.settle("q", 1)
    assert totals(one.ledger.total("orders")) == (100, 87, 13)


def test_a_replay_counts_once(tmp_path: Path) -> None:
    """P5: a batch whose commit failed, and that comes again, fills the window once."""
    one = office(tmp_path)
    for run in range(9):
        one.batch(0, dead=5, run_id=f"r{run}")
        one.settler.settle("q", 0)
    one.batch(1, dead=5)
    one.settler.settle("q", 1)
    assert totals(one.ledger.total("orders")) == (100, 90, 10)


def test_a_replay_counts_once_in_every_stage(tmp_path: Path) -> None:
    """P5: when one stage is over its budget, the others' windows forget the batch as well."""
    one = Office(tmp_path, decode=TENTH, price=TENTH)
    counts = {"entered": 50, "skipped": 0, "dead_lettered": 5}

    def batch(price_dead: int, run: str) -> None:
        made = one.batch(0, dead=5, run_id=run)
        made.stages["price"] = {**made.stages["decode"], **counts, "dead_lettered": price_dead}

    for run in range(4):
        batch(50, f"r{run}")
        with pytest.raises(StageFailedError, match="'price'"):
            one.settler.settle("q", 0)
    batch(0, "r9")
    one.settler.settle("q", 0)


def test_what_is_put_off_fills_the_budget(tmp_path: Path) -> None:
    """P5: an outage that puts every record off stops the stage, as one that dead-letters them."""
    one = office(tmp_path)
    for batch_id in range(2):
        one.batch(batch_id).stages["decode"]["delayed"] = 5
        one.settler.settle("q", batch_id)
    one.batch(2).stages["decode"]["delayed"] = 6
    with pytest.raises(StageFailedError, match="'decode'"):
        one.settler.settle("q", 2)


def test_two_queries_have_two_windows(tmp_path: Path) -> None:
    """P5: one query's failures are not held against another that uses the same flow."""
    one = office(tmp_path)
    for query in ("q", "p"):
        one.batch(0, dead=9, query_id=query, use=query)
        one.settler.settle(query, 0)
    assert one.ledger.total("orders").total("dead_lettered") == 18
    one.batch(1, dead=9, query_id="q", use="q")
    with pytest.raises(StageFailedError):  # as many of one query are too many
        one.settler.settle("q", 1)


def test_committed_batches_are_stored(tmp_path: Path) -> None:
    """P4, P5: where the commit was first, a batch over its budget is in the ledger all the same."""
    one = office(tmp_path)
    one.batch(0, dead=50)
    with pytest.raises(StageFailedError):
        one.settler.settle("q", 0, committed=True)
    assert totals(one.ledger.total("orders")) == (50, 0, 50)
    assert len(one.told) == 1


def test_batch_frames_raise_nothing(tmp_path: Path) -> None:
    """Reading the ledger of a batch job that is over its budget shows it, and raises nothing."""
    one = office(tmp_path)
    one.batch(0, dead=50, query_id=None, run_id=None, use="frame")
    one.box[0] = entry(0, 49, dead=50, query_id=None, batch_id=None, use="frame")
    one.settler.settle(None, None)
    assert totals(one.ledger.total("orders")) == (50, 0, 50)


def test_strays_after_the_commit(tmp_path: Path) -> None:
    """P4: a late report of a batch that a batch function has settled takes no strays."""
    one = office(tmp_path)
    one.accounts.streams("use")
    one.batch(0)
    one.settler.settle("q", 0)
    one.box.append(entry(50, 99, query_id=None, run_id=None, batch_id=None))
    one.settler.settle("q", 0, committed=True)
    one.settler.settle("q", 1)
    assert [account.records_in for account in one.ledger.batches()] == [50, 50]


def failure(attempts: int = 3) -> Failure:
    """Of a batch function."""
    return Failure(
        stage="store",
        category=Category.PROCESSING,
        cause=Cause.POISON,
        exception_types=("ValueError",),
        attempts=attempts,
        query_id="q",
        batch_id=4,
    )


def test_a_batch_that_left(tmp_path: Path) -> None:
    """P1, P19: the rows of a skipped batch are counted at its stage, with the tries apart."""
    one = office(tmp_path)
    one.settler.left(failure(), "skipped", 50)
    (account,) = one.ledger.batches("store")
    assert (account.records_in, account.total("skipped"), account.balanced) == (50, 50, True)
    assert (account.total("failed_attempts"), account.total("retries")) == (3, 2)
    assert account.own


def test_a_batch_that_left_and_came_again(tmp_path: Path) -> None:
    """P4: what a run before the commit said of a batch is taken back when it gets through."""
    one = office(tmp_path)
    one.settler.left(failure(), "skipped", 50)
    one.settler.passed(failure(2))
    (account,) = one.ledger.batches("store")
    assert (account.records_in, account.total("skipped")) == (0, 0)
    assert (account.total("failed_attempts"), account.total("retries")) == (2, 2)
    one.settler.left(failure(), "skipped", 50)
    one.settler.clean("store", "q", 4)
    assert one.ledger.batches("store") == []
