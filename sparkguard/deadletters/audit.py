"""Audit: whether every record that went in is where the ledger says.

The account is computed a second time, from what others have kept: letters from the sinks, offsets
from Spark's checkpoints, rows from the outputs. Accounting calls it reconciliation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace

from sparkguard.core import ledger as core
from sparkguard.deadletters.books import Books, books
from sparkguard.deadletters.check import Asked, Audit, Check, Verdict, unread, verdict_of
from sparkguard.deadletters.outputs import spool
from sparkguard.deadletters.places import Found, Places
from sparkguard.deadletters.sources import sources
from sparkguard.deadletters.stored import count_of, letters, letters_of
from sparkguard.deadletters.table import Table
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
    ranges = _ranges(found)
    places = Places(table, file, letters_of(found), ranges, fanned=found.fanned)
    expected, rows = sum(query.rows for query in found.queries), places.rows
    verdict = verdict_of(expected, rows)
    if verdict is Verdict.DOUBLED and rows - expected <= found.lost:
        verdict = Verdict.LOST
    yield Check(kind="output", of="rows", verdict=verdict, expected=expected, found=rows)
    untold = places.untold
    if rows and untold >= rows:
        why = "no row tells its coordinates: carry topic, partition and offset"
        yield Check(kind="places", of="output", verdict=Verdict.UNCHECKED, why=why)
        return
    doubled = places.doubled()
    yield Check(
        kind="places",
        of="doubled",
        verdict=Verdict.DOUBLED if doubled.count else Verdict.OK,
        expected=0,
        found=doubled.count,
        places=doubled.listed,
    )
    if ranges is not None:
        yield _missing(found, table, places, asked)


def _missing(found: Books, table: Table, places: Places, asked: Asked) -> Check:
    """Offsets without an output or a letter are those of filtered and skipped records."""
    untold = places.untold
    nowhere = count_of(table, f"{letters_of(found)} and topic is null")
    holes = found.offsets - sum(query.records_in for query in found.queries) if asked.holes else 0
    expected = found.placeless + nowhere + max(0, holes)
    if untold or found.fanned:
        why = "a flat_map makes several rows of a record, or none"
        if untold:
            why = f"{untold:,} rows do not tell their coordinates"
        verdict = Verdict.UNKNOWN if untold else Verdict.UNCHECKED
        return Check(kind="places", of="missing", verdict=verdict, expected=expected, why=why)
    gone = places.missing()
    # Of a batch whose counts are lost nobody knows how many were filtered or skipped.
    verdict, why = verdict_of(gone.count, expected, found.lost), ""
    if verdict is Verdict.MISSING:
        gone, why = _suspects(found, places, gone)
    elif verdict is Verdict.DOUBLED:
        why = "records that were counted as filtered or skipped lie somewhere"
    return Check(
        kind="places",
        of="missing",
        verdict=verdict,
        expected=expected,
        found=gone.count,
        why=why,
        places=gone.listed if verdict is Verdict.MISSING else (),
    )


def _suspects(found: Books, places: Places, gone: Found) -> tuple[Found, str]:
    """The places to list: those of batches that do not add up, where batches are remembered."""
    known = [
        (number, spans, query.placeless[number])
        for query in found.queries
        for number, spans in found.sources[query.id or ""].spans.items()
        if spans and number in query.placeless
    ]
    counts = places.missing_in([spans for _, spans, _ in known])
    wrong = [(*one, count) for one, count in zip(known, counts, strict=True) if count > one[2]]
    if not wrong:
        return gone, "offsets without output or letter; filtered and skipped ones among them"
    listed = places.missing([one for _, spans, *_ in wrong for one in spans]).listed
    said = (
        f"{number} ({count:,}, {placeless:,} of them on purpose)"
        for number, _, placeless, count in wrong[:5]
    )
    why = f"offsets without output or letter, in batch {', '.join(said)}"
    return replace(gone, listed=listed), why


def _ranges(found: Books) -> tuple[Range, ...] | None:
    """What all queries have read; None where one of them, or a topic read twice, is in the way."""
    ranges = [source.ranges for source in found.sources.values()]
    if not ranges or None in ranges:
        return None
    together = tuple(one for known in ranges for one in known or ())
    apart = {(one.topic, one.partition) for one in together}
    return together if len(apart) == len(together) else None
