from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkguard.core.ledger import Account, Entry, Top
from sparkguard.driver.accounts import Accounts
from sparkguard.driver.documents import dump, load
from sparkguard.driver.ledger import Ledger
from sparkguard.driver.state import State
from tests.unit.driver.desks import Box, entry, totals


class Books:
    """Accounts over a folder, and a ledger that reads them."""

    def __init__(self, folder: Path) -> None:
        self.state = State(str(folder))
        self.box = Box()
        self.accounts = Accounts(self.state)
        self.accounts.listen(self.box)  # type: ignore[arg-type]
        self.ledger = Ledger(self.state, self.accounts.pending)

    def settle(self, batch_id: int, *entries: Entry, committed: bool = False) -> list[Account]:
        """End a batch with these entries."""
        self.box.extend(entries)
        accounts = self.accounts.take("q", batch_id, strays=not committed)
        self.accounts.store(accounts, keep=committed)
        return accounts


@pytest.fixture
def books(tmp_path: Path) -> Books:
    """Accounts over a fresh folder."""
    return Books(tmp_path)


def stray(first: int, last: int, use: str = "use") -> Entry:
    """From a thread that the user's batch function started."""
    return entry(first, last, use=use, query_id=None, run_id=None, batch_id=None)


def unstorable(folder: Path) -> Callable[[], None]:
    """Put a file in the place of the folder; what undoes it."""
    away = folder.with_name("away")
    folder.rename(away)
    folder.write_text("in the way")

    def undo() -> None:
        folder.unlink()
        away.rename(folder)

    return undo


def test_a_batch(books: Books) -> None:
    """P4: the entries of a batch are one account, in the state, for any process to read."""
    books.settle(0, entry(0, 9, dead=1), entry(10, 19, partition=1))
    (account,) = Ledger(books.state).batches("orders")
    assert totals(account) == (20, 19, 1)
    assert account.balanced
    assert Ledger(books.state).total("orders").records_in == 20
    assert Ledger(books.state).total("unknown") == Account(flow="unknown")


def test_a_replay_overwrites(books: Books, tmp_path: Path) -> None:
    """P4: a batch that comes again, here or in a new process, is counted once."""
    books.settle(0, entry(0, 9, dead=1))
    books.settle(0, entry(0, 9, dead=1, run_id="r2", stage_id=7))
    assert totals(books.ledger.total("orders")) == (10, 9, 1)
    again = Books(tmp_path)
    again.settle(0, entry(0, 9, dead=1, run_id="r3"))
    assert totals(again.ledger.total("orders")) == (10, 9, 1)
    assert len(again.ledger.batches()) == 1


def test_a_replay_in_hand(books: Books) -> None:
    """P4: while a settled batch is evaluated again, it is still counted once."""
    books.settle(0, entry(0, 9, dead=1))
    books.box.append(entry(0, 9, dead=1, run_id="r2"))
    assert totals(books.ledger.total("orders")) == (10, 9, 1)
    assert len(books.ledger.batches("orders")) == 1


def test_a_failed_attempt_is_forgotten(books: Books) -> None:
    """P4: what a run counted before it failed is overwritten by the run that got through."""
    books.box.append(entry(0, 9, dead=1))
    books.settle(0, entry(0, 9, dead=1, run_id="r2"), entry(10, 19, run_id="r2", partition=1))
    assert totals(books.ledger.total("orders")) == (20, 19, 1)


def test_late_entries_do_not_erase(books: Books) -> None:
    """P4: what comes in after a batch was settled is merged with it, and never replaces it."""
    books.settle(0, entry(0, 9, dead=1), entry(10, 19, partition=1))
    late = books.settle(0, entry(0, 9, dead=1, stage_id=5), committed=True)
    assert totals(late[0]) == totals(books.ledger.total("orders")) == (20, 19, 1)


def test_nothing_new(books: Books) -> None:
    """A batch that is settled twice with nothing new is told once."""
    assert len(books.settle(0, entry(0, 9))) == 1
    assert books.settle(0, committed=True) == []
    assert books.settle(0) == []
    assert books.settle(1) == []


def test_two_flows_in_a_batch(books: Books) -> None:
    """Each flow of a batch has its account."""
    made = books.settle(0, entry(0, 9), entry(0, 4, flow="clicks", use="other"))
    assert {account.flow for account in made} == {"orders", "clicks"}
    assert books.ledger.totals().keys() == {"orders", "clicks"}


@settings(max_examples=4, deadline=None)
@given(st.integers(101, 130), st.integers(0, 3))
def test_old_batches_are_summed(
    tmp_path_factory: pytest.TempPathFactory, count: int, dead: int
) -> None:
    """P4: beyond the newest hundred, batches are summed, and totals stay exact."""
    books = Books(tmp_path_factory.mktemp("state"))
    for batch_id in range(count):
        first = batch_id * 10
        books.accounts.store(
            [account(batch_id, entry(first, first + 9, dead=dead, batch_id=batch_id))]
        )
    batches = books.ledger.batches("orders")
    assert [one.batch_id for one in batches] == list(range(count - 100, count))
    assert totals(books.ledger.total("orders")) == (10 * count, (10 - dead) * count, dead * count)
    assert books.ledger.total("orders").balanced


def account(batch_id: int, one: Entry) -> Account:
    """The account of a batch that one task evaluated."""
    return Account(
        flow=one.flow,
        query_id="q",
        batch_id=batch_id,
        records_in=one.records_in,
        records_out=one.records_out,
        stages=one.stages,
    )


def test_a_replay_among_a_hundred(books: Books) -> None:
    """P4: the newest batch, settled again, overwrites itself however many there are."""
    for batch_id in range(150):
        books.settle(batch_id, entry(0, 9, batch_id=batch_id))
    books.settle(149, entry(0, 9, batch_id=149, run_id="r2"))
    assert totals(books.ledger.total("orders")) == (1500, 1500, 0)


def test_a_replay_of_a_batch_that_is_summed(books: Books) -> None:
    """P4: what comes of a batch older than the newest hundred is in their sum already."""
    for batch_id in range(150):
        books.settle(batch_id, entry(0, 9, batch_id=batch_id))
    books.box.extend([entry(0, 9, batch_id=3)])
    assert books.ledger.total("orders").records_in == 1500
    assert len(books.ledger.batches("orders")) == 100
    books.settle(3)
    assert Ledger(books.state).total("orders").records_in == 1500


def test_strays_belong_to_the_running_batch(books: Books) -> None:
    """P4: entries of a user's own threads come without a batch; the running one takes them."""
    books.accounts.streams("use")
    books.settle(3, stray(0, 9), stray(10, 19))
    (made,) = books.ledger.batches()
    assert (made.query_id, made.batch_id, made.records_in) == ("q", 3, 20)


def test_strays_of_the_next_batch(books: Books) -> None:
    """P4: a report that comes late does not take what belongs to the batch after it."""
    books.accounts.streams("use")
    books.settle(3, entry(0, 9, batch_id=3))
    books.box.append(stray(10, 19))
    books.settle(3, committed=True)
    books.settle(4)
    assert {one.batch_id: one.records_in for one in books.ledger.batches()} == {3: 10, 4: 10}


def test_strays_of_another_query(books: Books) -> None:
    """Entries of a use that is known to be another query's are left to that one."""
    books.accounts.streams("theirs")
    books.box.append(entry(0, 4, use="theirs", query_id="other"))
    books.settle(3, entry(0, 9, batch_id=3), stray(5, 9, use="theirs"))
    assert [one.records_in for one in Ledger(books.state).batches()] == [10]
    assert totals(books.accounts.take("other", 0)[0]) == (10, 10, 0)


def test_strays_are_no_batch_frame(books: Books) -> None:
    """P4: reading the ledger in the middle of a batch takes nothing from it."""
    books.accounts.streams("use")
    books.box.append(stray(0, 9))
    assert books.accounts.unbatched() == []
    assert books.accounts.take(None, None) == []
    books.settle(0)
    assert books.ledger.batches()[0].records_in == 10


def test_a_batch_frame(books: Books) -> None:
    """A flow over a batch DataFrame is settled on its own, each frame as one more batch."""
    for use in ("one", "another"):
        books.box.append(stray(0, 9, use=use))
        assert books.accounts.unbatched() == [(None, None)]
        books.accounts.store(books.accounts.take(None, None), keep=True)
    assert books.accounts.unbatched() == []
    assert [one.batch_id for one in books.ledger.batches()] == [0, 1]
    assert books.ledger.total("orders").records_in == 20


def frames(books: Books, *uses: str) -> int:
    """What the ledger says once these frames were evaluated, each of ten records or seven."""
    for use in uses:
        books.box.append(stray(0, {"a": 9, "b": 6}.get(use, 4), use=use))
    books.accounts.store(books.accounts.take(None, None), keep=True)
    return books.ledger.total("orders").records_in


def test_frames_apart_then_together(books: Books) -> None:
    """P4: two frames that were counted apart count once each when they come together."""
    assert frames(books, "a") == 10
    assert frames(books, "b") == 17
    assert frames(books, "a", "b") == 17
    assert frames(books, "b", "new") == 22


def test_a_frame_that_was_not_stored(books: Books) -> None:
    """P4: the number of a frame whose account the state did not take is no other frame's."""
    books.box.append(stray(0, 9, use="a"))
    taken = books.accounts.take(None, None)
    assert frames(books, "b") == 7
    books.accounts.store(taken, keep=True)
    assert books.ledger.total("orders").records_in == 17


def test_a_ledger_that_is_kept(books: Books) -> None:
    """P4: a ledger that was asked for earlier does not count a frame again that it has."""
    kept = Ledger(books.state, books.accounts.pending)
    assert frames(books, "a") == 10
    books.box.append(stray(0, 9, use="a"))
    assert kept.total("orders").records_in == 10
    books.box.append(stray(0, 6, use="b"))
    assert kept.total("orders").records_in == 17


def test_what_is_kept_of_a_frame_does_not_grow(books: Books) -> None:
    """A frame that is evaluated a thousand times keeps the entries of one evaluation."""
    for _ in range(1000):
        frames(books, "a")
    (known,) = books.accounts._frames._known.values()
    assert len(known.entries) == 1


def test_a_batch_frame_again(books: Books) -> None:
    """P4: a frame that is evaluated again, after it was settled, counts once all the same."""
    for first, last in ((0, 9), (10, 14), (0, 9)):
        books.box.append(stray(first, last, use="frame"))
        books.accounts.store(books.accounts.take(None, None), keep=True)
    (account,) = books.ledger.batches()
    assert account.records_in == 15


def test_committed_but_not_storable(books: Books, tmp_path: Path) -> None:
    """P4: an account that the state does not take after the commit is kept, shown, tried again."""
    books.settle(0, entry(0, 9))
    undo = unstorable(tmp_path / "ledger")
    with pytest.raises(OSError, match="ledger"):
        books.settle(1, entry(10, 19, batch_id=1), committed=True)
    undo()
    assert books.ledger.total("orders").records_in == 20
    assert Ledger(books.state).total("orders").records_in == 10
    books.settle(2, entry(20, 29, batch_id=2), committed=True)
    assert Ledger(books.state).total("orders").records_in == 30
    assert books.accounts.pending() == []


def test_not_committed_and_not_storable(books: Books, tmp_path: Path) -> None:
    """P4: an account that cannot be stored before the commit fails the batch, and is not kept."""
    books.settle(0, entry(0, 9))
    undo = unstorable(tmp_path / "ledger")
    with pytest.raises(OSError, match="ledger"):
        books.settle(1, entry(10, 19, batch_id=1))
    undo()
    books.settle(2, entry(20, 29, batch_id=2), committed=True)
    assert [one.batch_id for one in Ledger(books.state).batches()] == [0, 2]


def test_lost(books: Books) -> None:
    """P4: a committed batch without an account is one with `in` alone, and never balanced."""
    books.settle(0, entry(0, 9))
    stored = books.accounts.lost("orders", "q", [(1, 25)])
    assert [one.batch_id for one in stored] == [1]
    total = books.ledger.total("orders")
    assert (total.records_in, total.counts_lost, total.balanced) == (35, True, False)


def test_lost_never_overwrites(books: Books) -> None:
    """P4: an account that came meanwhile, into the state or to the driver, is left alone."""
    books.settle(1, entry(0, 9, batch_id=1))
    books.box.append(entry(10, 19, batch_id=2))
    assert books.accounts.lost("orders", "q", [(1, 99), (2, 99)]) == []
    assert books.ledger.total("orders").records_in == 20


def test_own_accounts(books: Books) -> None:
    """A batch function's account stands beside its flow's, and is taken back when it is no more."""
    own = Account(flow="orders", query_id="q", batch_id=0, records_in=9, own=True)
    books.settle(0, entry(0, 9))
    books.accounts.store([own])
    assert sorted(one.records_in for one in books.ledger.batches()) == [9, 10]
    books.accounts.drop("orders", "q", 1)
    assert len(books.ledger.batches()) == 2
    books.accounts.drop("orders", "q", 0)
    books.accounts.drop("nobody", "q", 0)
    assert [one.records_in for one in books.ledger.batches()] == [10]


def test_any_name_is_one_file(books: Books, tmp_path: Path) -> None:
    """A flow's name may be anything, and is still found again."""
    books.settle(0, entry(0, 9, flow="../eu/orders"))
    assert books.ledger.total("../eu/orders").records_in == 10
    assert [path.parent for path in tmp_path.rglob("*.json")] == [tmp_path / "ledger"]


TOP = Top(
    stage="decode",
    fingerprint="f",
    cause="poison",
    exception_type="ValueError",
    message="no",
    coordinates="in[0]@7",
    count=3,
)


def test_round_trip() -> None:
    """An account comes back from JSON as it went; newer facts are left out, missing ones filled."""
    made = replace(account(3, entry(0, 9, dead=1)), top=(TOP,), rows_out=12)
    assert load(dump(made)) == made
    assert load({**dump(made), "a_newer_fact": 1}) == made
    assert load({"flow": "orders"}) == Account(flow="orders")
