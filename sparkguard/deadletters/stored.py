"""Stored: the letters in the sinks, counted by flow and stage beside what the ledger says."""

from __future__ import annotations

from collections.abc import Iterator

from sparkguard.core import ledger
from sparkguard.deadletters.books import Books
from sparkguard.deadletters.check import Check, Verdict
from sparkguard.deadletters.selection import quoted
from sparkguard.deadletters.table import STORED, UID, Table


def letters(found: Books, table: Table) -> Iterator[Check]:
    """A check for each stage that has letters, or should have some."""
    stored = _stored(found, table)
    for account in ledger.add(found.accounts):
        queries = [one for one in found.queries if account.flow in one.names]
        lost = sum(one.late for one in queries)
        lost += account.uncounted if account.counts_lost else 0
        expected = {name: counts["dead_lettered"] for name, counts in account.stages.items()}
        others = {stage for flow, stage in stored if flow == account.flow} - {*expected}
        again = len(queries) > 1 or queries[0].id is None
        for stage, count in (expected | dict.fromkeys(others, 0)).items():
            there = stored.get((account.flow, stage), 0)
            elements = account.stages.get(stage, {}).get("elements", 0)
            verdict = _verdict(count, there, elements, lost)
            why = _WHY.get(verdict, "")
            yield Check(
                kind="letters",
                of=f"{account.flow}.{stage}",
                verdict=verdict,
                expected=count,
                found=there,
                why=why + _AGAIN * (verdict is Verdict.MISSING and again),
            )
    known = {account.flow for account in found.accounts}
    for (flow, stage), there in stored.items():
        if flow not in known:
            yield Check(
                kind="letters",
                of=f"{flow}.{stage}",
                verdict=Verdict.DOUBLED,
                expected=0,
                found=there,
                why=_WHY[Verdict.DOUBLED],
            )
    yield from _strangers(found, table)


_AGAIN = "; or records were read again, whose letters have the same ids"
_WHY = {
    Verdict.MISSING: "fewer letters than were counted: lost, or deleted",
    Verdict.DOUBLED: "more letters than were counted, of tries that were repeated otherwise",
    Verdict.LOST: "as many more letters may be there as records have lost their counts",
}


def _verdict(expected: int, found: int, elements: int, lost: int) -> Verdict:
    if found < expected:
        return Verdict.MISSING
    if found <= expected + elements:
        # An element of a partial stage may have been skipped, which counts as an element too.
        return Verdict.OK
    return Verdict.LOST if found <= expected + elements + lost else Verdict.DOUBLED


def _stored(found: Books, table: Table) -> dict[tuple[str, str], int]:
    """How many letters of this app there are, by flow and stage; a batch function is its flow."""
    rows = table.rows(f"""
        select flow, stage, count(*) from (
            select distinct {UID} as uid, {_FLOW} as flow, stage, query_id
            from {STORED} where {letters_of(found)}) group by all""")
    return {(str(flow), str(stage)): int(count) for flow, stage, count in rows}


_OF_BATCHES = "coalesce(flow, '') = ''"
_FLOW = "coalesce(nullif(flow, ''), stage)"


def letters_of(found: Books) -> str:
    """The condition, in SQL, of the stored letters that are held against these books."""
    flows = ", ".join(quoted(account.flow) for account in found.accounts)
    # A batch function has an account only where something failed in the end.
    parts = [f"app = {quoted(found.app)}", f"({_FLOW} in ({flows}) or {_OF_BATCHES})"]
    # What waits in a retry topic is no dead letter.
    parts.append("due is null")
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
