"""sparkguard status: one look at an app."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from sparkguard.cli.answer import PROBLEM, say_json, told
from sparkguard.cli.apps import APP, CONFIG, STATE, find_app
from sparkguard.cli.shown import clock, plain, safe, say_table
from sparkguard.core.ledger import WAYS_OUT

if TYPE_CHECKING:
    from sparkguard.driver.status import FlowStatus, Status


def status(
    app: str = APP,
    state: str = STATE,
    config: Path | None = CONFIG,
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Show what the state of APP tells: counts, last batches, restarts, and what is open.

    Exit code 1 where nothing goes on without a person: a stage is over its budget, or a restart
    limit is used up. The limits are those of --config, else the defaults.

    For example:

        sparkguard status orders --state s3://bucket/state/orders

        sparkguard status --config guard.yaml --json
    """
    with told(as_json=as_json):
        from sparkguard.driver.restarts import Limit
        from sparkguard.driver.status import status as looked

        found = find_app(app, state, config)
        limit = Limit.of(found.settings.restart) if found.settings else Limit()
        known = looked(found.state, limit)
    if as_json:
        say_json(plain({"ok": not known.needs_a_person, "app": found.name, **asdict(known)}))
    else:
        _show(found.name, known)
    if known.needs_a_person:
        raise typer.Exit(PROBLEM)


def _show(app: str, known: Status) -> None:
    typer.echo(f"{app}, in {safe(known.path)}\n")
    ways = (fact.replace("_", "-") for fact in WAYS_OUT)
    heads = ("flow", "in", "out", *ways, "last batch", "in", "left", "stored at")
    say_table(heads, [_row(one) for one in known.flows])
    lines = [*_lines(known)]
    if lines:
        typer.echo("")
    for line in lines:
        typer.echo(safe(line))


def _row(one: FlowStatus) -> tuple[str, ...]:
    total, last = one.total, one.last
    counts = (total.records_in, total.records_out)
    facts = (total.total(fact) for fact in WAYS_OUT)
    newest: tuple[str, ...] = ("-", "-", "-")
    if last is not None:
        newest = (str(last.batch_id), f"{last.records_in:,}", f"{last.left:,}")
    numbers = (f"{count:,}" for count in (*counts, *facts))
    return (safe(total.flow), *numbers, *newest, clock(one.stored_at))


def _lines(known: Status) -> Iterator[str]:
    limit = known.limit
    for one in known.restarts:
        used = f"{one.since_commit} of {limit.max_restarts} since its last committed batch"
        hour = f"{one.within_an_hour} of {limit.max_per_hour} within an hour"
        yield f"restarts of {one.query}: {used}, {hour}"
        if one.refusal:
            yield f"it would not be restarted: {one.refusal}"
    for breach in known.breaches:
        yield f"over its budget: {breach}"
    lost = sum(one.total.uncounted for one in known.flows if one.total.counts_lost)
    if lost:
        yield f"counts lost: of {lost:,} records only that they went in is known"
    for query in known.careful:
        yield f"careful since a worker died: query {query}"
    for isolation in known.isolations:
        yield f"isolation: {isolation}"
    if known.standing:
        yield f"entries that no account has yet: {known.standing:,}"
    if known.stop_requested:
        yield "the stop marker is set: its queries stop between two batches"
