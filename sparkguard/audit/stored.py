"""Stored: the letters in the sinks, counted by flow and stage beside what the ledger says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from sparkguard.audit.books import Books
from sparkguard.audit.check import Check, Verdict
from sparkguard.core import ledger
from sparkguard.core.ledger import Account
from sparkguard.deadletters.selection import quoted
from sparkguard.deadletters.table import STORED, UID, Table


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """Letters of records that have left for good, or of such as come again.

    Attributes:
        facts: of the ledger; their sum is how many letters there should be.
        where: the condition, in SQL, of such letters.
        fewer: what it means if there are less, and why.
    """

    name: str
    facts: tuple[str, ...]
    where: str
    fewer: tuple[Verdict, str]

    def expected(self, account: Account) -> dict[str, int]:
        """How many letters there should be, by stage."""
        return {
            stage: sum(counts.get(fact, 0) for fact in self.facts)
            for stage, counts in account.stages.items()
        }


_DEAD: Final = _Kind(
    name="letters",
    facts=("dead_lettered", "extra_letters"),
    where="due is null",
    fewer=(Verdict.MISSING, "fewer letters than were counted: lost, or deleted"),
)
_DELAYED: Final = _Kind(
    name="delayed",
    facts=("delayed",),
    where="due is not null",
    fewer=(
        Verdict.UNKNOWN,
        "fewer letters than records were put off: lost, or deleted by the retry topic's retention",
    ),
)
_AGAIN: Final = "; or records were read again, whose letters have the same ids"
_MORE: Final = "more letters than were counted, of tries that were repeated otherwise"
_LOST: Final = "as many more letters may be there as records have lost their counts"
_Stage = tuple[str, str]


def letters(found: Books, table: Table) -> Iterator[Check]:
    """A check for each stage that has letters, or should have some; one more for those put off."""
    accounts = {account.flow: account for account in ledger.add(found.accounts)}
    for kind in (_DEAD, _DELAYED):
        stored = _stored(found, table, kind)
        short = _short(found, table, kind) if found.lost_of() else Counter[_Stage]()
        named = [(flow, name) for flow, one in accounts.items() for name in kind.expected(one)]
        for flow, stage in dict.fromkeys([*named, *stored]):
            account = accounts.get(flow, Account(flow=flow))
            expected, there = kind.expected(account).get(stage, 0), stored[flow, stage]
            if kind is _DELAYED and not expected and not there:
                continue
            lost = found.lost_of(flow)
            if lost and account.stages.get(stage, {}).get("elements"):
                # Of a record of lost counts several elements may have letters.
                lost = max(lost, there)
            verdict, why = _verdict(kind, expected, there, lost, short=short[flow, stage] > 0)
            if verdict is Verdict.MISSING and found.again(flow):
                why += _AGAIN
            of = f"{flow}.{stage}"
            yield Check(
                kind=kind.name, of=of, verdict=verdict, expected=expected, found=there, why=why
            )
    yield from _strangers(found, table)


def _verdict(
    kind: _Kind, expected: int, found: int, lost: int, *, short: bool
) -> tuple[Verdict, str]:
    if found < expected or short:
        return kind.fewer
    if lost and found <= expected + lost:
        return Verdict.LOST, _LOST
    return (Verdict.OK, "") if found == expected else (Verdict.DOUBLED, _MORE)


def _stored(found: Books, table: Table, kind: _Kind) -> Counter[_Stage]:
    """How many letters of this app there are, by flow and stage; a batch function is its flow."""
    rows = table.rows(f"""
        select flow, stage, count(*) from (
            select distinct {UID} as uid, {_FLOW} as flow, stage, query_id
            from {STORED} where {_of_app(found)} and {kind.where}) group by all""")
    return Counter({(str(flow), str(stage)): int(count) for flow, stage, count in rows})


def _short(found: Books, table: Table, kind: _Kind) -> Counter[_Stage]:
    """How many letters the batches that were counted lack, whatever there is of others."""
    rows = table.rows(f"""
        select flow, stage, query_id, batch_id, count(*) from (
            select distinct {UID} as uid, {_FLOW} as flow, stage, query_id, batch_id
            from {STORED} where {_of_app(found)} and {kind.where}) group by all""")
    there = {tuple(place): int(count) for *place, count in rows}
    short = Counter[_Stage]()
    for query in found.queries:
        for number, accounts in query.batches.items() if query.id else ():
            for account in accounts:
                for stage, count in kind.expected(account).items():
                    lies = there.get((account.flow, stage, query.id, number), 0)
                    short[account.flow, stage] += max(0, count - lies)
    for (flow, stage, _, batch), count in there.items():
        # It may be of any batch.
        short[flow, stage] -= count if batch is None else 0
    return short


_OF_BATCHES = "coalesce(flow, '') = ''"
_FLOW = "coalesce(nullif(flow, ''), stage)"


def letters_of(found: Books) -> str:
    """The condition, in SQL, of the dead letters that are held against these books.

    What waits in a retry topic is no dead letter.
    """
    return f"{_of_app(found)} and {_DEAD.where}"


def _of_app(found: Books) -> str:
    flows = ", ".join(quoted(account.flow) for account in found.accounts)
    # A batch function has an account only where something failed in the end.
    parts = [f"app = {quoted(found.app)}", f"({_FLOW} in ({flows}) or {_OF_BATCHES})"]
    named = [query for query in found.queries if query.id is not None]
    ids = ", ".join(quoted(query.id or "") for query in named)
    if found.sources:
        parts.append(f"query_id in ({ids})")
    if named:
        # A batch that is under way is not in the ledger, and its letters are not here.
        limits = " ".join(
            f"when {quoted(query.id or '')} then case when {_OF_BATCHES} "
            f"then {query.newest[1]} else {query.newest[0]} end"
            for query in named
        )
        parts.append(f"coalesce(batch_id <= case query_id {limits} end, true)")
    return " and ".join(parts)


def _strangers(found: Books, table: Table) -> Iterator[Check]:
    """Letters of flows that the ledger does not know, and of which nobody knows the app."""
    if not found.chosen:
        flows = ", ".join(quoted(account.flow) for account in found.accounts)
        theirs = f"app = {quoted(found.app)} and not {_OF_BATCHES} and flow not in ({flows})"
        if count := count_of(table, theirs):
            why = "letters of flows that the ledger does not know"
            yield Check(kind="letters", of="", verdict=Verdict.UNCHECKED, found=count, why=why)
    if count := count_of(table, "coalesce(app, '') = ''"):
        why = "letters that do not say of which app they are, as in other tools' dialects"
        yield Check(kind="letters", of="", verdict=Verdict.UNKNOWN, found=count, why=why)


def count_of(table: Table, condition: str) -> int:
    """How many stored letters meet a condition, each id once."""
    ids = f"select distinct {UID} from {STORED} where {condition}"
    ((count,),) = table.rows(f"select count(*) from ({ids})")
    return int(count)
