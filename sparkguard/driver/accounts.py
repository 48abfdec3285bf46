"""The accounts: entries merged by batch and kept in the state."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sparkguard.core import ledger
from sparkguard.core.ledger import Account, Entry
from sparkguard.driver.documents import document_of, dump, load, place_of, summed
from sparkguard.driver.frames import Frames
from sparkguard.driver.mailbox import FileMailbox, Mailbox
from sparkguard.driver.state import State

_RECENT = 100
"""Batches kept one by one, as many as Spark's checkpoint remembers; older ones are summed."""

Key = tuple[str | None, int | None]


@dataclass(slots=True)
class _Taken:
    """The entries of a query's latest settled batch: what comes late is merged with them."""

    batch_id: int | None = None
    entries: list[Entry] = field(default_factory=list)


class Accounts:
    """The ledger's writer, one for a guard."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._lock = threading.Lock()
        self._pending: dict[Key, list[Entry]] = defaultdict(list)
        self._taken: dict[str, _Taken] = defaultdict(_Taken)
        self._unstored: list[Account] = []
        self._frames = Frames()
        self._mailboxes: list[Mailbox] = []
        self._files: FileMailbox | None = None
        self._merged: dict[tuple[str, int | None], set[str]] = defaultdict(set)
        self._failed: list[Entry] = []
        self._looked: set[Key] = set()
        self._streaming: dict[str, str | None] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        senders = () if self._files is None else tuple(self._files.senders)
        return Accounts, (self._state,), (self._streaming, senders)

    def __setstate__(self, known: tuple[dict[str, str | None], tuple[str, ...]]) -> None:
        """In the process of a batch function on Spark Connect."""
        self._streaming, senders = known
        self._files = FileMailbox(self._state, senders)

    def listen(self, mailbox: Mailbox) -> None:
        """Take entries from one more mailbox."""
        with self._lock:
            self._mailboxes.append(mailbox)

    def files(self) -> FileMailbox:
        """The mailbox of entries that come as files; they are looked for from now on."""
        with self._lock:
            self._files = self._files or FileMailbox(self._state)
            return self._files

    def streams(self, use: str) -> None:
        """Remember that this use of a flow reads a stream: its entries belong to a batch.

        Threads that a batch function starts by itself do not inherit Spark's local
        properties; their entries come without a batch and are given to the running one.
        """
        with self._lock:
            self._streaming.setdefault(use)

    def take(
        self, query_id: str | None, batch_id: int | None, *, strays: bool = True
    ) -> list[Account]:
        """The merged accounts of one batch; none if nothing new of it has come.

        Args:
            strays: the batch is the running one, so entries without a batch are its own.
        """
        with self._lock:
            if (query_id, batch_id) not in self._looked:
                self._collect(query_id)
            self._looked.discard((query_id, batch_id))
            if query_id is None:
                pending = self._pending.get((None, None), [])
                entries, kept = _split(pending, self._streaming)
                entries = list(filter(self._own, entries))
                self._mark(entries)
                numbered = self._frames.numbered(entries, self._following)
                self._pending[None, None] = kept
                return ledger.merge(numbered)
            self._late(query_id, batch_id or 0)
            entries = self._pending.pop((query_id, batch_id), [])
            if strays:
                entries.extend(self._strays(query_id, batch_id))
            if not entries:
                return []
            taken = self._taken[query_id]
            if taken.batch_id != batch_id:
                taken.batch_id, taken.entries = batch_id, []
            taken.entries.extend(entries)
            self._mark(entries)
            return ledger.merge(taken.entries)

    def latest(self, query_id: str | None, batch_id: int) -> dict[str, int]:
        """The last of Spark's stages that sent an entry of this batch, by flow."""
        with self._lock:
            taken = self._taken.get(query_id or "")
            if taken is None or taken.batch_id != batch_id:
                return {}
            return {entry.flow: entry.stage_id for entry in sorted(taken.entries, key=_by_stage)}

    def store(self, accounts: Iterable[Account], *, keep: bool = False) -> None:
        """Store accounts in the state; a batch that is settled again overwrites its account.

        Args:
            keep: the batch is committed already, so an account that the state does not
                take now is kept for the next call.
        """
        with self._lock:
            waiting = [*self._unstored, *accounts]
            self._unstored = waiting if keep else self._unstored
            for account in waiting:
                self._write(account)
                self._unstored = [one for one in self._unstored if one is not account]

    def unbatched(self) -> list[Key]:
        """What belongs to no micro-batch and can be settled at any time: batch frames' entries."""
        with self._lock:
            self._collect(sent=True)
            ours, _ = _split(self._pending.get((None, None), []), self._streaming)
            self._looked = {(None, None)} if any(map(self._own, ours)) else set()
            return list(self._looked)

    def swallowed(self, query_id: str, batch_id: int, run_id: str) -> str | None:
        """Why a flow failed that was not evaluated again since, by what its tasks left as files.

        Asked before the batch is taken, which looks no second time.
        """
        with self._lock:
            self._collect(query_id)
            self._looked = {(query_id, batch_id)}
            good = self._pending.get((query_id, batch_id), [])
            failed = (
                lost.failed
                for lost in self._failed
                if (lost.query_id, lost.batch_id, lost.run_id) == (query_id, batch_id, run_id)
                and not any(_heals(entry, lost) for entry in good)
            )
            return next(failed, None)

    def standing(self) -> list[tuple[str, int, str]]:
        """The batches whose entries stand as files, oldest first, and the run that wrote them.

        Only of queries that this guard has sent out and no batch function drives: no two
        processes may write one account. They are taken as they were found by this look.
        """
        with self._lock:
            if self._files is None:
                return []
            self._collect(sent=True)
            found = {
                (entry.query_id, entry.batch_id): entry.run_id or ""
                for group in self._pending.values()
                for entry in group
                if entry.carrier and entry.query_id and entry.batch_id is not None
            }
            self._looked = set(found)
            return sorted((str(key[0]), int(key[1] or 0), run) for key, run in found.items())

    def pending(self) -> list[Account]:
        """The accounts of batches that are not in the state yet."""
        with self._lock:
            self._collect()
            frames, others = _split(self._pending.get((None, None), []), self._streaming)
            others += (
                entry
                for key, group in self._pending.items()
                if key != (None, None)
                for entry in group
            )
            return self._unstored + ledger.merge([*self._frames.peeked(frames), *others])

    def drop(self, flow: str, query_id: str | None, batch_id: int | None) -> None:
        """Forget a batch function's own account of a batch: this time nothing failed."""
        name = document_of(Account(flow=flow, query_id=query_id, own=True))
        with self._lock:
            document = self._state.load(name)
            if document and document["recent"].pop(str(batch_id), None):
                self._state.store(name, document)

    def lost(self, flow: str, query_id: str, batches: Iterable[tuple[int, int]]) -> list[Account]:
        """Store committed batches without an account as counts lost, with what they read.

        Returns those that were stored; a batch whose account has come meanwhile is left alone.
        """
        stored = []
        with self._lock:
            self._collect()
            for batch_id, records_in in batches:
                lost = Account(
                    flow=flow,
                    query_id=query_id,
                    batch_id=batch_id,
                    records_in=records_in,
                    counts_lost=True,
                )
                document = self._state.load(document_of(lost)) or {"recent": {}}
                if str(batch_id) in document["recent"] or self._pending.get((query_id, batch_id)):
                    continue
                self._write(lost)
                stored.append(lost)
        return stored

    def _collect(self, query_id: str | None = None, *, sent: bool = False) -> None:
        """Look for entries; for files of all, of one query, or of what this guard has sent out."""
        arrived = [entry for mailbox in self._mailboxes for entry in mailbox.take()]
        if self._files is not None:
            # A file may be gone by now: another process has merged it.
            for key, group in list(self._pending.items()):
                kept = [entry for entry in group if not entry.carrier]
                self._pending[key] = kept
                if not kept:
                    del self._pending[key]
            if sent:
                arrived += self._files.take_sent()
            else:
                arrived += self._files.take_of(query_id) if query_id else self._files.take()
        self._looked = set()
        self._failed = [entry for entry in arrived if entry.failed]
        for entry in arrived:
            if entry.failed:
                continue
            if entry.query_id is not None and entry.use in self._streaming:
                self._streaming[entry.use] = entry.query_id
            self._pending[entry.query_id, entry.batch_id].append(entry)

    def _own(self, entry: Entry) -> bool:
        return not entry.carrier or (self._files is not None and self._files.wrote(entry))

    def _mark(self, entries: Sequence[Entry]) -> None:
        """Remember which files will be in the next account that is stored."""
        keys = {(entry.flow, entry.query_id, entry.batch_id) for entry in entries}
        failed = (it for it in self._failed if (it.flow, it.query_id, it.batch_id) in keys)
        for entry in (*entries, *failed):
            if entry.carrier:
                self._merged[place_of(entry)].add(entry.carrier)

    def _late(self, query_id: str, batch_id: int) -> None:
        """Settle what a batch function's tasks wrote after their batch; its process is this one."""
        if self._files is None:
            return
        late = [
            self._pending.pop(key)
            for key, group in list(self._pending.items())
            if key[0] == query_id
            and key[1] is not None
            and key[1] < batch_id
            and all("/" in (entry.run_id or "") and entry.carrier for entry in group)
        ]
        for group in late:
            self._mark(group)
            for account in ledger.merge(group):
                self._write(account)
        words = (it for it in self._failed if it.query_id == query_id)
        old = {it.carrier for it in words if it.batch_id is not None and it.batch_id < batch_id}
        if old:
            self._files.remove(old)
            self._failed = [it for it in self._failed if it.carrier not in old]

    def _strays(self, query_id: str, batch_id: int | None) -> list[Entry]:
        ours = {use: query for use, query in self._streaming.items() if query in (None, query_id)}
        kept, strays = _split(self._pending.get((None, None), []), ours)
        self._pending[None, None] = kept
        return [replace(entry, query_id=query_id, batch_id=batch_id) for entry in strays]

    def _following(self, flow: str) -> int:
        """The number of a flow's next batch frame."""
        document = self._state.load(document_of(Account(flow=flow))) or {"recent": {}}
        return max(map(int, document["recent"]), default=-1) + 1

    def _write(self, account: Account) -> None:
        name = document_of(account)
        document = self._state.load(name) or {"older": None, "recent": {}}
        recent = {int(key): value for key, value in document["recent"].items()}
        merged = self._merged.get(place_of(account), set())
        number, older = account.batch_id or 0, document["older"]
        known = recent.get(number)
        kept = merged and known and _fuller(load(known), account)
        if not (kept or summed(document, account)):
            recent[number] = dump(account)
        while len(recent) > _RECENT:
            oldest = recent.pop(min(recent))
            parts = [load(part) for part in (older, oldest) if part]
            older = dump(ledger.add(parts)[0])
        left = set(document.get("merged", ()))
        document = {"older": older, "recent": recent}
        if self._files is not None:
            left = merged | (left & self._files.left)
        # With the account, in one write: who finds one of these files still there knows.
        self._state.store(name, document | ({"merged": sorted(left)} if left else {}))
        if merged and self._files is not None:
            self._merged.pop(place_of(account))
            self._files.remove(merged)


def _by_stage(entry: Entry) -> int:
    return entry.stage_id


def _heals(entry: Entry, lost: Entry) -> bool:
    """Whether a task did what another one had failed to do: later, or the same part."""
    same = (entry.flow, entry.run_id) == (lost.flow, lost.run_id)
    part = (entry.stage_id, entry.partition) == (lost.stage_id, lost.partition)
    return same and (part or entry.stage_id > lost.stage_id)


def _fuller(known: Account, account: Account) -> bool:
    """Whether a stored account stays: what comes as files may come late, and in part."""
    return not known.counts_lost and known.records_in > account.records_in


def _split(
    entries: Iterable[Entry], uses: dict[str, str | None]
) -> tuple[list[Entry], list[Entry]]:
    """The entries of other uses, and those of these."""
    others: list[Entry] = []
    theirs: list[Entry] = []
    for entry in entries:
        (theirs if entry.use in uses else others).append(entry)
    return others, theirs
