"""Audit: whether every record that went in is where the ledger says.

The account is computed a second time, from what others have kept: letters from the sinks, offsets
from Spark's checkpoints, rows from the outputs. Accounting calls it reconciliation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing

from sparkguard.audit.books import Books, books
from sparkguard.audit.check import Asked, Audit, Check, Verdict, unread, verdict_of
from sparkguard.audit.outputs import spool
from sparkguard.audit.places import Places
from sparkguard.audit.sources import sources
from sparkguard.audit.stored import count_of, letters, letters_of
from sparkguard.core import ledger as core
from sparkguard.deadletters.table import STORED, UID, Table
from sparkguard.deadletters.topic import Bounds
from sparkguard.dialects.base import Dialect
from sparkguard.driver.checkpoint import Range
from sparkguard.driver.ledger import Ledger
from sparkguard.sinks.base import Sink


def audit(
    app: str,
    ledger: Ledger,
    sinks: Mapping[str, Sink],
    asked: Asked,
    *,
    dialects: Sequence[Dialect] = (),
) -> Audit:
    """Compute the account of an app again.

    It may run beside the app: what is not committed yet is left out. It reads every letter's id and
    every output row's coordinates once; memory stays bounded, the disk holds the rest.

    Raises:
        LettersError: something that was named is not there, or the ledger knows no such query.
        UnknownNameError: the ledger knows no such flow.
    """
    # In this order: of what comes meanwhile the later ones have more, and that is left out.
    known = sources(asked.checkpoints)
    found = books(app, ledger, known, asked.flows)
    with closing(Table(sinks, Bounds(), dialects)) as table:
        checks = [*_accounts(found), *letters(found, table), *_sources(found, asked)]
        if asked.outputs:
            checks += _outputs(found, table, asked)
        checks += map(unread, table.skipped)
    return Audit(app=app, checks=tuple(checks))


# --- what was counted ---------------------------------------------------------------------------


def _accounts(found: Books) -> Iterator[Check]:
    for account in core.add(found.accounts):
        gone = account.records_out + account.left
        why = ""
        if account.counts_lost:
            why = f"of {account.uncounted:,} records only that they went in is known"
        yield Check(
            kind="account",
            of=account.flow,
            verdict=verdict_of(account.records_in, gone, account.counts_lost * account.uncounted),
            expected=account.records_in,
            found=gone,
            why=why,
        )


# --- what was read ------------------------------------------------------------------------------


def _sources(found: Books, asked: Asked) -> Iterator[Check]:
    for query in found.queries:
        source = found.sources.get(query.id or "")
        if source is None:
            continue
        if query.offsets is None:
            why = source.problem or "its offsets do not tell how many records were read"
            verdict = Verdict.UNKNOWN if source.problem else Verdict.UNCHECKED
            yield Check(kind="source", of=source.path, verdict=verdict, why=why)
            continue
        verdict, why = Verdict.UNKNOWN, "its flows have counted different numbers of records"
        if query.records_in is not None:
            verdict, why = verdict_of(query.offsets, query.records_in, query.late), ""
        if verdict is Verdict.LOST:
            why = "committed batches have no account: their counts are lost"
        elif verdict is Verdict.MISSING and asked.holes:
            verdict, why = Verdict.OK, "the difference is taken for holes"
        elif verdict is Verdict.MISSING:
            why = "offsets were committed that no flow has counted"
        elif verdict is Verdict.DOUBLED:
            why = "more was counted than committed offsets hold"
        yield Check(
            kind="source",
            of=source.path,
            verdict=verdict,
            expected=query.offsets,
            found=query.records_in,
            why=why,
        )


# --- what came out ------------------------------------------------------------------------------


def _outputs(found: Books, table: Table, asked: Asked) -> Iterator[Check]:
    file = table.new_file()
    yield from map(unread, spool(asked.outputs, file))
    ranges, unranged = _ranges(found)
    places = Places(table, file, letters_of(found), ranges, fanned=found.fanned)
    rows, untold = places.rows, places.untold
    yield _rows(found, rows)
    if rows and untold >= rows:
        why = "no row tells its coordinates: carry topic, partition and offset"
        yield Check(kind="places", of="output", verdict=Verdict.UNCHECKED, why=why)
        return
    doubled, why = places.doubled(), _branched(found)
    if ranges is None and len(found.queries) > 1:
        why = "several queries may have read the same records"
    verdict = Verdict.UNKNOWN if why else Verdict.DOUBLED
    yield Check(
        kind="places",
        of="doubled",
        verdict=verdict if doubled.count else Verdict.OK,
        expected=0,
        found=doubled.count,
        why=why if doubled.count else "",
        places=doubled.listed,
    )
    if not found.whole:
        unranged = "the flows that are asked for are not those that read the source"
    if unranged:
        yield Check(kind="places", of="missing", verdict=Verdict.UNCHECKED, why=unranged)
    else:
        yield _missing(found, table, places, asked)


def _branched(found: Books) -> str:
    names = found.branched
    return names and f"how the flows {names} stand to each other is not known: ask for one --flow"


def _rows(found: Books, rows: int) -> Check:
    if why := _branched(found):
        return Check(kind="output", of="rows", verdict=Verdict.UNKNOWN, found=rows, why=why)
    expected = sum(query.rows or 0 for query in found.queries)
    verdict, why = verdict_of(expected, rows), ""
    # Who made several rows of a record whose counts are lost, nobody knows how many.
    if found.lost and (0 <= rows - expected <= found.lost or (rows > expected and found.fanned)):
        verdict, why = Verdict.LOST, "as many more rows may be there as records lost their counts"
    return Check(kind="output", of="rows", verdict=verdict, expected=expected, found=rows, why=why)


def _missing(found: Books, table: Table, places: Places, asked: Asked) -> Check:
    """Offsets without an output or a letter are those of filtered and skipped records."""
    untold = places.untold
    nowhere = count_of(table, f"{letters_of(found)} and topic is null")
    holes = found.offsets - sum(query.records_in or 0 for query in found.queries)
    expected = found.placeless + nowhere + max(0, holes if asked.holes else 0)
    verdict, why = Verdict.UNKNOWN, _branched(found)
    if untold:
        why = f"{untold:,} rows do not tell their coordinates"
    elif found.fanned and not why:
        verdict, why = Verdict.UNCHECKED, "a flat_map makes several rows of a record, or none"
    if why:
        return Check(kind="places", of="missing", verdict=verdict, expected=expected, why=why)
    gone = places.missing()
    # Of a batch whose counts are lost nobody knows how many were filtered or skipped.
    verdict = verdict_of(gone.count, expected, found.lost)
    listed, suspected = _suspects(found, table, places, asked) if gone.count else ((), "")
    if suspected:
        verdict, why = Verdict.MISSING, f"offsets without output or letter, in {suspected}"
    elif verdict is Verdict.MISSING:
        listed = gone.listed
        why = "offsets without output or letter; filtered and skipped ones among them"
    elif verdict is Verdict.DOUBLED:
        why = "records that were counted as filtered or skipped lie somewhere"
    return Check(
        kind="places",
        of="missing",
        verdict=verdict,
        expected=expected,
        found=gone.count,
        why=why,
        places=listed,
    )


def _suspects(
    found: Books, table: Table, places: Places, asked: Asked
) -> tuple[tuple[str, ...], str]:
    """The places of those batches that lack more than they should, and the batches' numbers.

    Each is looked at by itself: what one has too many is nothing that another may lack.
    """
    nowhere = {
        (query, batch): int(count)
        for query, batch, count in table.rows(f"""
            select query_id, batch_id, count(distinct {UID}) from {STORED}
            where {letters_of(found)} and topic is null group by all""")
    }
    known: list[tuple[int, Sequence[Range], int]] = []
    for query in found.queries:
        for number, spans in found.sources[query.id or ""].spans.items():
            if spans and number in query.batches:
                left = query.placeless(number) + nowhere.get((query.id, number), 0)
                if asked.holes:
                    size = sum(max(0, one.end - one.start) for one in spans)
                    left += max(0, size - query.read_in(number))
                known.append((number, spans, left))
    counts = places.missing_in([spans for _, spans, _ in known])
    wrong = [(*one, count) for one, count in zip(known, counts, strict=True) if count > one[2]]
    if not wrong:
        return (), ""
    listed = places.missing([one for _, spans, *_ in wrong for one in spans]).listed
    said = (f"{at} ({count:,}, {left:,} of them on purpose)" for at, _, left, count in wrong[:5])
    return listed, f"batch {', '.join(said)}"


def _ranges(found: Books) -> tuple[tuple[Range, ...] | None, str]:
    """What all queries have read; None where nobody knows, and why."""
    if not found.sources:
        return None, "no checkpoint is given, which would tell what was read"
    ranges = [source.ranges for source in found.sources.values()]
    if None in ranges:
        return None, "the offsets of a source do not tell what was read"
    together = tuple(one for known in ranges for one in known or ())
    apart = {(one.topic, one.partition) for one in together}
    if len(apart) < len(together):
        return None, "one partition was read twice"
    return together, ""
