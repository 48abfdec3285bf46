"""The accounts: entries merged by batch, kept in the state, told to the watchers."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from typing import Any

from sparkguard.core import ledger
from sparkguard.core.ledger import Account, Entry, Top
from sparkguard.driver.mailbox import Mailbox
from sparkguard.driver.state import State

_RECENT = 100
"""Batches kept one by one, as many as Spark's checkpoint remembers; older ones are summed."""

Key = tuple[str | None, int | None]


class Accounts:
    """The ledger's writer, one for a guard."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._lock = threading.Lock()
        self._pending: dict[Key, list[Entry]] = defaultdict(list)
        self._mailboxes: list[Mailbox] = []
        self._streaming: dict[str, str | None] = {}

    def listen(self, mailbox: Mailbox) -> None:
        """Take entries from one more mailbox."""
        with self._lock:
            self._mailboxes.append(mailbox)

    def streams(self, use: str) -> None:
        """Remember that this use of a flow reads a stream: its entries belong to a batch.

        Threads that a batch function starts by itself do not inherit Spark's local
        properties; their entries come without a batch and are given to the running one.
        """
        with self._lock:
            self._streaming[use] = None

    def take(self, query_id: str | None, batch_id: int | None) -> list[Account]:
        """The merged accounts of one batch; none if no flow of ours ran in it."""
        with self._lock:
            self._collect()
            entries = self._pending.pop((query_id, batch_id), [])
            entries.extend(self._strays(query_id, batch_id))
            return ledger.merge(entries)

    def store(self, accounts: Iterable[Account]) -> None:
        """Keep accounts in the state; a batch that is settled again overwrites its account."""
        with self._lock:
            for account in accounts:
                self._store(account)

    def unbatched(self) -> list[Key]:
        """What belongs to no micro-batch and can be settled at any time: batch frames' entries."""
        with self._lock:
            self._collect()
            return [key for key, entries in self._pending.items() if key[1] is None and entries]

    def pending(self) -> list[Account]:
        """The accounts of batches that are not settled yet."""
        with self._lock:
            self._collect()
            return ledger.merge(entry for group in self._pending.values() for entry in group)

    def lost(self, flow: str, query_id: str, batches: Iterable[tuple[int, int]]) -> None:
        """Store committed batches without an account as counts lost, with what they read."""
        with self._lock:
            for batch_id, records_in in batches:
                lost = Account(
                    flow=flow,
                    query_id=query_id,
                    batch_id=batch_id,
                    records_in=records_in,
                    counts_lost=True,
                )
                self._store(lost)

    def _collect(self) -> None:
        for mailbox in self._mailboxes:
            for entry in mailbox.take():
                if entry.query_id is not None and entry.use in self._streaming:
                    self._streaming[entry.use] = entry.query_id
                self._pending[entry.query_id, entry.batch_id].append(entry)

    def _strays(self, query_id: str | None, batch_id: int | None) -> list[Entry]:
        if query_id is None:
            return []
        strays = self._pending.get((None, None), [])
        ours = [e for e in strays if self._streaming.get(e.use, "") in (None, query_id)]
        self._pending[None, None] = [entry for entry in strays if entry not in ours]
        return [replace(entry, query_id=query_id, batch_id=batch_id) for entry in ours]

    def _store(self, account: Account) -> None:
        name = f"ledger/{account.flow}.{account.query_id or 'batch'}"
        document = self._state.load(name) or {"older": None, "recent": {}}
        recent = {int(key): value for key, value in document["recent"].items()}
        batch_id = account.batch_id
        if batch_id is None:
            batch_id = max(recent, default=-1) + 1
        recent[batch_id] = dump(account)
        older = document["older"]
        while len(recent) > _RECENT:
            oldest = recent.pop(min(recent))
            parts = [load(part) for part in (older, oldest) if part]
            older = dump(ledger.add(parts)[0])
        self._state.store(name, {"older": older, "recent": recent})


class Ledger:
    """The account of every record, by flow, stage and batch, as the state has it."""

    def __init__(self, state: State, pending: Callable[[], list[Account]] | None = None) -> None:
        self._state = state
        self._pending = pending

    def batches(self, flow: str | None = None) -> list[Account]:
        """One account a batch, the newest hundred of each query."""
        accounts = [account for account, single in self._read(flow) if single]
        return accounts + self._unsettled(flow)

    def totals(self) -> dict[str, Account]:
        """One account a flow, over all of its batches."""
        everything = [account for account, _ in self._read(None)] + self._unsettled(None)
        return {account.flow: account for account in ledger.add(everything)}

    def total(self, flow: str) -> Account:
        """The account of one flow over all of its batches; empty if it never ran."""
        return self.totals().get(flow, Account(flow=flow))

    def _read(self, flow: str | None) -> list[tuple[Account, bool]]:
        found = []
        for name in self._state.names("ledger"):
            document = self._state.load(name) or {"older": None, "recent": {}}
            parts = [(part, True) for part in document["recent"].values()]
            if document["older"]:
                parts.insert(0, (document["older"], False))
            found.extend((load(part), single) for part, single in parts)
        return [(account, single) for account, single in found if flow in (None, account.flow)]

    def _unsettled(self, flow: str | None) -> list[Account]:
        accounts = self._pending() if self._pending else []
        return [account for account in accounts if flow in (None, account.flow)]


def dump(account: Account) -> dict[str, Any]:
    """An account as JSON."""
    return asdict(account)


def load(document: dict[str, Any]) -> Account:
    """An account from JSON."""
    return Account(**{**document, "top": tuple(Top(**top) for top in document["top"])})
