"""The state's documents of accounts: their names, what is in them, which one of two counts."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any
from urllib.parse import quote

import msgspec

from sparkguard.core.ledger import Account, Entry


def dump(account: Account) -> dict[str, Any]:
    """An account as JSON."""
    return asdict(account)


def load(document: dict[str, Any]) -> Account:
    """An account from JSON; facts that this version does not know are left out."""
    return msgspec.convert(document, Account)


def document_of(account: Account) -> str:
    """Name of the document that has the account."""
    own = ".own" if account.own else ""
    return f"ledger/{quote(account.flow, safe='')}.{account.query_id or 'batch'}{own}"


def place_of(one: Account | Entry) -> tuple[str, int | None]:
    """Where the files of an account are noted; a batch frame's entries know no number."""
    own = isinstance(one, Account) and one.own
    account = Account(flow=one.flow, query_id=one.query_id, own=own)
    return document_of(account), one.batch_id if one.query_id else None


def summed(document: Any, account: Account) -> bool:
    """Whether the batch is older than those kept one by one: its account is in their sum."""
    if not document or not document["older"] or account.batch_id is None:
        return False
    return account.batch_id < min(map(int, document["recent"]))


def newest(accounts: list[Account]) -> list[Account]:
    """One account a batch: of a stored one and one that waits, the fullest, else the later."""
    found: dict[object, Account] = {}
    for index, account in enumerate(accounts):
        # What waits of batch frames has no number yet.
        number = account.batch_id if account.batch_id is not None else (index,)
        place = (account.flow, account.query_id, account.own, number)
        known = found.get(place)
        if known is None or known.records_in <= account.records_in:
            found[place] = account
    return list(found.values())
