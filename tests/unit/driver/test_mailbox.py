"""Entries that come as files: they count once, whoever looks and whoever dies."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from sparkguard import Guard, Settings
from sparkguard.core.ledger import Account, Entry
from sparkguard.driver.accounts import Accounts
from sparkguard.driver.ledger import Ledger
from sparkguard.driver.mailbox import KEPT_DAYS, FileMailbox
from sparkguard.driver.state import State
from tests.unit.driver.desks import entry

FRAME = entry(0, 9, query_id=None, run_id=None, batch_id=None, use="frame", spans=(), part="a")


class Process:
    """A guard's accounts in one process; several share a state."""

    def __init__(self, folder: Path) -> None:
        self.state = State(str(folder))
        self.accounts = Accounts(self.state)
        self.mailbox = self.accounts.files()
        self.slot = self.mailbox.slot

    def settle(self, query_id: str | None = "q", batch_id: int | None = 0) -> list[Account]:
        """End a batch."""
        accounts = self.accounts.take(query_id, batch_id)
        self.accounts.store(accounts)
        return accounts

    def left(self) -> list[str]:
        """The entries' files that stand."""
        return self.state.entry_names()

    def counts(self) -> list[tuple[int | None, int]]:
        """Records in, by batch, with what is in no account yet."""
        ledger = Ledger(self.state, self.accounts.pending)
        found = ((one.batch_id, one.records_in) for one in ledger.batches("orders"))
        return sorted(found, key=repr)


def stored(folder: Path) -> list[tuple[int | None, int]]:
    """Records in, by batch, as the accounts in the state have them."""
    batches = Ledger(State(str(folder))).batches("orders")
    return sorted((one.batch_id, one.records_in) for one in batches)


def dying(removed: int) -> Callable[[FileMailbox, set[str]], None]:
    """The removal of a process that dies after so many files."""

    def remove(mailbox: FileMailbox, names: set[str]) -> None:
        for name in sorted(names)[:removed]:
            mailbox._state.delete(name)
        if names:
            raise KeyboardInterrupt

    return remove


def test_a_batch(tmp_path: Path) -> None:
    """P4: the files of a batch become one account, and only then they go."""
    process = Process(tmp_path)
    process.slot.add([entry(0, 9, dead=1)])
    process.slot.add([entry(10, 19, partition=1)])
    accounts = process.accounts.take("q", 0)
    assert len(process.left()) == 2
    process.accounts.store(accounts)
    assert process.left() == []
    assert stored(tmp_path) == [(0, 20)]


def test_a_task_that_ran_twice(tmp_path: Path) -> None:
    """P4: a task that failed behind the flow has written its entry, and so has its next try."""
    process = Process(tmp_path)
    process.slot.add([replace(entry(0, 9), attempt=1), replace(entry(0, 9), attempt=2)])
    process.settle()
    assert stored(tmp_path) == [(0, 10)]
    assert process.left() == []


@pytest.mark.parametrize("removed", [0, 1])
@pytest.mark.parametrize("first", [entry(0, 9), FRAME])
def test_a_process_that_dies(
    tmp_path: Path, first: Entry, removed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P4: dead between the account and the removal of its files: the next process adds nothing."""
    process = Process(tmp_path)
    second = replace(first, partition=1, spans=(), part="b")
    process.slot.add([first, second])
    with monkeypatch.context() as patched:
        patched.setattr(FileMailbox, "remove", dying(removed))
        with pytest.raises(KeyboardInterrupt):
            process.settle(first.query_id, first.batch_id)
    assert len(process.left()) == 2 - removed
    following = Process(tmp_path)
    following.settle(first.query_id, first.batch_id)
    assert following.counts() == stored(tmp_path) == [(0, 20)]
    assert following.left() == []


def test_another_process_only_looks(tmp_path: Path) -> None:
    """P4: it shows what is in no account yet, and writes none: the owner does, once."""
    owner, other = Process(tmp_path), Process(tmp_path)
    owner.slot.add([entry(0, 9), FRAME])
    assert other.accounts.unbatched() == []
    assert other.accounts.standing() == []
    assert sorted(count for _, count in other.counts()) == [10, 10]
    assert owner.accounts.unbatched() == [(None, None)]
    assert owner.accounts.standing() == [("q", 0, "r1")]
    owner.settle()
    owner.settle(None, None)
    assert sorted(count for _, count in other.counts()) == [10, 10]


def test_a_late_file(tmp_path: Path) -> None:
    """P4: what a lost task writes after its batch is settled does not stand for the batch."""
    Process(tmp_path).slot.add([entry(0, 9), entry(10, 19, partition=1)])
    Process(tmp_path).settle()
    late = Process(tmp_path)
    late.slot.add([entry(0, 9)])
    late.settle()
    assert stored(tmp_path) == [(0, 20)]
    assert late.left() == []


@pytest.mark.parametrize(
    ("after", "swallowed"),
    [
        ([], "why"),
        ([entry(10, 19, partition=1)], "why"),
        ([entry(0, 9)], None),
        ([replace(entry(10, 19, partition=1), stage_id=9)], None),
    ],
    ids=["nothing", "only another part", "the part again", "evaluated anew"],
)
def test_swallowed(tmp_path: Path, after: list[Entry], swallowed: str | None) -> None:
    """P1: a failed part of a flow that was not done again since is known, and counts nothing."""
    process = Process(tmp_path)
    process.slot.add([replace(entry(0, 9), failed="why", records_in=0, spans=()), *after])
    assert process.accounts.swallowed("q", 0, "r1") == swallowed
    assert process.accounts.swallowed("q", 0, "another run") is None
    process.settle()
    assert sum(count for _, count in stored(tmp_path)) == sum(it.records_in for it in after)


def test_a_late_file_of_a_batch_that_is_summed(tmp_path: Path) -> None:
    """P4: it is not added to the sum of old batches again, and goes."""
    process = Process(tmp_path)
    for batch_id in range(101):
        process.slot.add([entry(0, 9, batch_id=batch_id)])
        process.settle(batch_id=batch_id)
    process.slot.add([entry(0, 9, batch_id=0)])
    process.settle(batch_id=0)
    assert Ledger(process.state).total("orders").records_in == 1010
    assert process.left() == []


def test_a_driven_query_has_one_writer(tmp_path: Path) -> None:
    """P4: the client leaves it alone, late files too; the batch function's process takes those."""
    client = Process(tmp_path)
    server = pickle.loads(pickle.dumps(client.accounts))
    driven = replace(entry(0, 9), run_id="r1/0")
    client.slot.add([driven])
    server.store(server.take("q", 0))
    word = replace(driven, batch_id=1, failed="why", flow="another")
    client.slot.add([replace(entry(0, 4), run_id="r1/0"), replace(driven, batch_id=1), word])
    assert client.accounts.standing() == []
    assert [one.batch_id for one in client.accounts.pending()] == [0, 1]
    server.store(server.take("q", 1))
    client.slot.add([replace(driven, batch_id=2)])
    server.store(server.take("q", 2))
    assert stored(tmp_path) == [(0, 10), (1, 10), (2, 10)]
    assert client.left() == []
    assert client.accounts.pending() == []
    assert client.accounts._pending == {}


def test_threads_of_a_batch_function(tmp_path: Path) -> None:
    """P4: what they left without a batch reaches the process of the batch function."""
    client = Process(tmp_path)
    client.accounts.streams("frame")
    server = pickle.loads(pickle.dumps(client.accounts))
    Process(tmp_path).slot.add([replace(FRAME, part="another guard's")])
    client.slot.add([FRAME])
    server.store(server.take("q", 0))
    assert stored(tmp_path) == [(0, 10)]
    assert len(client.left()) == 1


@pytest.mark.parametrize("first", [entry(0, 9), FRAME])
def test_a_file_that_cannot_be_removed(
    tmp_path: Path, first: Entry, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """P4: the account is stored, so its batch stands; the file counts no more, and goes later."""
    process = Process(tmp_path)
    key = (first.query_id, first.batch_id)

    def refuse(*_: object) -> None:
        raise OSError("SLOW_DOWN")

    with monkeypatch.context() as patched:
        patched.setattr(State, "delete", refuse)
        for part in ("a", "b"):
            process.slot.add([replace(first, part=part)])
            process.settle(*key)
            assert "2 entries" in caplog.text or part == "a"
    counts = stored(tmp_path)
    assert len(process.left()) == 2
    assert process.counts() == Process(tmp_path).counts() == counts
    process.slot.add([replace(first, part="c")])
    process.settle(*key)
    assert process.left() == []


def test_the_names_of_what_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """P4: a file that could not be removed stays named while later batches are stored."""
    process = Process(tmp_path)
    delete, refused = State.delete, set[str]()

    def refuse(state: State, name: str) -> None:
        refused.add(min(refused, default=name))
        if name in refused:
            raise OSError("SLOW_DOWN")
        delete(state, name)

    monkeypatch.setattr(State, "delete", refuse)
    for part in "abc":
        process.slot.add([replace(FRAME, part=part)])
        process.settle(None, None)
    monkeypatch.undo()
    assert len(process.left()) == 1
    following = Process(tmp_path)
    assert following.counts() == [(0, 30)]
    assert following.left() == []


def test_many_batches_need_one_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What stands is listed and read once, however many batches are settled then."""
    process = Process(tmp_path)
    process.slot.add([entry(0, 9, batch_id=batch_id) for batch_id in range(20)])
    looks = 0
    listed = State.entry_names

    def listing(state: State) -> list[str]:
        nonlocal looks
        looks += 1
        return listed(state)

    monkeypatch.setattr(State, "entry_names", listing)
    monkeypatch.setattr(FileMailbox, "take_of", None)
    for query, batch_id, _ in process.accounts.standing():
        process.settle(query, batch_id)
    assert looks == 1
    assert stored(tmp_path) == [(batch_id, 10) for batch_id in range(20)]


def test_a_guard_settles_a_hundred_at_once(tmp_path: Path) -> None:
    """P9: who supervises the queries is away for no longer than that."""
    guard = Guard(Settings(app="orders", state={"path": str(tmp_path)}))
    slot = guard._accounts.files().slot
    slot.add([entry(0, 9, batch_id=batch_id) for batch_id in range(150)])
    assert guard.ledger.total("orders").records_in == 1500
    assert len(Process(tmp_path).left()) == 50
    assert guard.ledger.total("orders").records_in == 1500
    assert len(Process(tmp_path).left()) == 1


def test_only_its_own_files_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch pays for the files of its query, and for none of another query or job."""
    process = Process(tmp_path)
    Process(tmp_path).slot.add([FRAME, entry(0, 9, query_id="another")])
    process.slot.add([entry(0, 9), entry(10, 19, partition=1)])
    read: list[str] = []
    monkeypatch.setattr(FileMailbox, "_load", loading(read))
    assert process.accounts.swallowed("q", 0, "r1") is None
    process.settle()
    assert len(read) == 2
    process.accounts.standing()
    process.accounts.unbatched()
    assert len(read) == 2
    assert len(process.counts()) == 3


def loading(read: list[str]) -> Callable[[FileMailbox, str], Entry | None]:
    """The reading of a file, which is noted."""
    load = FileMailbox._load

    def noting(mailbox: FileMailbox, name: str) -> Entry | None:
        read.append(name)
        return load(mailbox, name)

    return noting


def test_files_go_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads and removals wait for the store together: each waits here until another one does."""
    process = Process(tmp_path)
    process.slot.add([entry(0, 9), entry(10, 19, partition=1)])
    for name in ("load", "delete"):
        monkeypatch.setattr(State, name, met(getattr(State, name)))
    process.settle()
    monkeypatch.undo()
    assert stored(tmp_path) == [(0, 20)]
    assert process.left() == []


def met(work: Callable[[State, str], object]) -> Callable[[State, str], object]:
    """The same, but two of them at a time for entries."""
    pair = threading.Barrier(2, timeout=10)

    def waiting(state: State, name: str) -> object:
        if name.startswith("entries/"):
            pair.wait()
        return work(state, name)

    return waiting


def test_a_sweep(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What nobody has settled for so long goes, of whatever query or job, and it is said."""
    process = Process(tmp_path)
    process.slot.add([FRAME, entry(0, 9), entry(0, 9, batch_id=1)])
    days = (KEPT_DAYS + 1) * 86_400 * 10**9
    for name in process.left()[:2]:
        folder, _, file = name.rpartition("/")
        old = f"{int(file[:20]) - days:020d}{file[20:]}"
        (tmp_path / f"{name}.json").rename(tmp_path / folder / f"{old}.json")
    Guard(Settings(app="orders", state={"path": str(tmp_path)})).run()
    assert process.counts() == [(1, 10)]
    assert f"2 entries that nobody settled for {KEPT_DAYS} days" in caplog.text
