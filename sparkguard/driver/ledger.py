"""The ledger as it is read: the accounts that the state has, and those that it has not yet."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace

from sparkguard.core import ledger
from sparkguard.core.ledger import Account
from sparkguard.driver.documents import document_of, load, newest, summed
from sparkguard.driver.state import State
from sparkguard.errors import SparkguardError


class Ledger:
    """The account of every record, by flow, stage and batch, as the state has it."""

    def __init__(self, state: State, pending: Callable[[], list[Account]] | None = None) -> None:
        self._state = state
        self._pending = pending

    def batches(self, flow: str | None = None) -> list[Account]:
        """One account a batch, the newest hundred of each query."""
        accounts = [account for account, single in self._read(flow) if single]
        return newest(accounts + self._unsettled(flow))

    def totals(self) -> dict[str, Account]:
        """One account a flow, over all of its batches."""
        return {account.flow: account for account in ledger.add(self._each_once())}

    def sums(self, until: Mapping[str, int]) -> list[Account]:
        """One account a flow and query, over all of its batches; a batch function's own is apart.

        Args:
            until: of these queries the last batch that counts.
        """
        groups: dict[tuple[str, str | None, bool], list[Account]] = defaultdict(list)
        for account in self._each_once():
            if (account.batch_id or 0) <= until.get(account.query_id or "", account.batch_id or 0):
                groups[account.flow, account.query_id, account.own].append(account)
        return [
            replace(ledger.add(group)[0], query_id=query_id, own=own)
            for (_, query_id, own), group in groups.items()
        ]

    def _each_once(self) -> list[Account]:
        """What all batches add up from: sums of the older ones, and the newer ones."""
        read = self._read(None)
        single = [account for account, alone in read if alone] + self._unsettled(None)
        older = [account for account, alone in read if not alone]
        found = older + newest(single)
        flows = {account.flow for account in found if not account.own}
        # A batch function has an account of its own, but not under the name of a flow.
        return [account for account in found if not (account.own and account.flow in flows)]

    def total(self, flow: str) -> Account:
        """The account of one flow over all of its batches; empty if it never ran."""
        return self.totals().get(flow, Account(flow=flow))

    def _read(self, flow: str | None) -> list[tuple[Account, bool]]:
        found: list[tuple[Account, bool]] = []
        for name in self._state.names("ledger"):
            document = self._state.load(name) or {"older": None, "recent": {}}
            try:
                if document["older"]:
                    found.append((load(document["older"]), False))
                found.extend((load(part), True) for part in document["recent"].values())
            except (AttributeError, KeyError, TypeError, ValueError) as error:
                msg = (
                    f"The state's document {name!r} at {self._state.path!r} is none that this "
                    "version writes; move it away to go on without it."
                )
                raise SparkguardError(msg) from error
        return [(account, single) for account, single in found if flow in (None, account.flow)]

    def _unsettled(self, flow: str | None) -> list[Account]:
        accounts = self._pending() if self._pending else []
        documents = {name: self._state.load(name) for name in set(map(document_of, accounts))}
        return [
            account
            for account in accounts
            if flow in (None, account.flow) and not summed(documents[document_of(account)], account)
        ]
