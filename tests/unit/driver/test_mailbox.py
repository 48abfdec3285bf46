"""Entries that come as files: they count once, whoever looks and whoever dies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from sparkguard.core.ledger import Account, Entry
from sparkguard.driver.accounts import Accounts, Ledger
from sparkguard.driver.mailbox import FileMailbox
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
        return self.state.names("entries")

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
