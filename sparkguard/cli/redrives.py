"""sparkguard dlq redrives: what became of letters that were sent back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING

import typer

from sparkguard.cli.answer import refuse, say_json
from sparkguard.cli.letters import Source, reading
from sparkguard.cli.shown import number, safe, say_table

if TYPE_CHECKING:
    from sparkguard.deadletters.journal import Run


@partial(reading, whole=True)
def redrives(
    source: Source,
    run: str = typer.Argument("", help="Only this redrive; the beginning of its id."),
    checkpoint: str = typer.Option("", help="The query's checkpoint: how far it has committed."),
    resolve: bool = typer.Option(
        False, "--resolve", help="Mark its letters as resolved that have come through."
    ),
    abandon: bool = typer.Option(False, "--abandon", help="End it: what has not gone stays."),
    limit: int = typer.Option(20, min=1, help="So many redrives, the latest first."),
) -> None:
    """Show what became of letters that were sent back.

    *Resolved* is a letter whose new place in the topic the query has committed, and that no letter
    has; *failed again* one whose new place a letter has, *put off* one whose new place only a
    letter in a retry topic has; else it is *waiting*.

    For example:

        sparkguard dlq redrives --config guard.yaml --checkpoint /srv/orders/checkpoint

        sparkguard dlq redrives 20260131 --config guard.yaml --checkpoint cp --resolve
    """
    from sparkguard.deadletters.journal import Journal
    from sparkguard.deadletters.lock import only_one, user
    from sparkguard.driver.checkpoint import Checkpoint
    from sparkguard.redrive.outcomes import Outcomes

    if (resolve or abandon) and not run:
        raise typer.BadParameter("--resolve and --abandon are for one redrive; name it.")
    if resolve and not checkpoint:
        raise typer.BadParameter("--resolve needs the query's --checkpoint.")
    if resolve and not source.config:
        # In a sink that nobody named may lie what failed again.
        raise typer.BadParameter("--resolve needs every sink of the app: --config.")
    state = source.needed_state()
    journal = Journal(state)
    found = [journal.run(run)] if run else journal.runs()[:limit]
    if abandon:
        with only_one(state):
            # Again, for it may have ended since.
            one = journal.run(found[0].id)
            found = [one if one.ended else journal.end(one, abandoned=True)]
    try:
        reached = Checkpoint(checkpoint).reached() if checkpoint else None
    except UnicodeDecodeError:
        refuse([f"The checkpoint {checkpoint} is damaged."], as_json=source.as_json)
    if reached == {}:
        refuse([f"No batch over Kafka is committed at {checkpoint}."], as_json=source.as_json)
    with source.store(retrying=True) as store:
        outcomes = Outcomes(store, reached)
        counts = outcomes.counts([one.id for one in found])
        marked = outcomes.resolve(found[0].id, user()) if resolve else None
    if source.as_json:
        runs = [{**asdict(one), "outcomes": _outcomes(one, counts[one.id])} for one in found]
        say_json({"redrives": runs, **({} if marked is None else {"marked": marked})})
        return
    _show(found, counts)
    if found and not checkpoint:
        typer.echo("Without --checkpoint nothing counts as resolved.", err=True)
    if marked is not None:
        typer.echo(f"Marked {number(marked, 'letter')} as resolved.")


def _show(found: list[Run], counts: Mapping[str, Mapping[str, int]]) -> None:
    from sparkguard.redrive.outcomes import OUTCOMES

    if not found:
        typer.echo("No redrives.")
        return
    heads = ("redrive", "by", "letters", *(name.replace("_", " ") for name in OUTCOMES))
    rows = []
    for one in found:
        told = _outcomes(one, counts[one.id])
        cells = (f"{told[name]:,}" for name in OUTCOMES)
        end = "" if one.ended else f" (to go: {told['to_go']:,})"
        rows.append((one.id, safe(one.by) or "-", f"{one.letters:,}{end}", *cells))
    say_table(heads, rows)


def _outcomes(run: Run, counts: Mapping[str, int]) -> dict[str, int]:
    """Every outcome, and how many letters have still to go."""
    from sparkguard.redrive.outcomes import OUTCOMES

    told = {name: counts.get(name, 0) for name in OUTCOMES}
    return {**told, "to_go": 0 if run.ended else run.letters - sum(told.values())}
