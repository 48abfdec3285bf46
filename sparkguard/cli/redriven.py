"""Redriven: what is said of letters that go, while they go and when they have gone."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

import typer

from sparkguard.cli.answer import PROBLEM, say_json
from sparkguard.cli.letters import Source
from sparkguard.cli.shown import number, safe, say_table

if TYPE_CHECKING:
    from sparkguard.deadletters.journal import Run
    from sparkguard.deadletters.store import Store
    from sparkguard.redrive.fates import Share
    from sparkguard.redrive.redrive import Done, Progress
    from sparkguard.redrive.sending import Target
    from sparkguard.redrive.through import Through

_SAYS: Final = {
    "send": "go to {to}",
    "park": "were sent back as often as is allowed: go to the parking lot",
    "worn_out": "were sent back as often as is allowed, and stay: there is no parking lot",
    "already": "were sent back before, and stay (--again sends them)",
    "pointer": "cannot go: the whole letter is in a sink that was not read",
    "row": "cannot go to a topic: they are no records of one (--through processes them here)",
    "newer": "cannot go: a later version of sparkguard wrote them",
}
_EVERY_SECONDS: Final = 5.0
_INTERRUPTED: Final = 130


@contextmanager
def progress_of(source: Source) -> Iterator[Progress]:
    """A bar on a terminal, else a line every few seconds; nothing beside JSON."""
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, TimeRemainingColumn

    console = Console(stderr=True, highlight=False)
    if source.as_json:
        yield lambda _run, _done: None
    elif console.is_terminal:
        columns = (*Progress.get_default_columns()[:2], MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=console) as bar:
            task = bar.add_task("sending", total=None)
            yield lambda run, done: bar.update(
                task, description=run.id, total=run.letters, completed=done
            )
    else:
        yield _Lines()


class _Lines:
    """Says how far a redrive is: at first, and every few seconds."""

    def __init__(self) -> None:
        self._next = 0.0

    def __call__(self, run: Run, done: int) -> None:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _EVERY_SECONDS
            typer.echo(f"redrive {run.id}: {done:,} of {run.letters:,}", err=True)


def tell_plan(source: Source, shares: list[Share], target: Target | Through, store: Store) -> None:
    """Say what would go, and exit with 1 if something that is meant cannot."""
    from sparkguard.redrive.sending import Target

    counts = _by_fate(shares)
    if isinstance(target, Target):
        to = target.topic or "the topic where each first came in"
        where = {"topic": target.topic, "bootstrap_servers": target.servers}
    else:
        to, where = target.name, {"through": target.name}
    if source.as_json:
        say_json(
            {
                "ok": not _cannot(counts),
                "target": where,
                "letters": counts,
                "groups": [asdict(one) for one in shares],
                "skipped": [asdict(one) for one in store.skipped],
            }
        )
    else:
        rows = [
            (safe(one.stage) or "-", safe(one.exception) or "-", f"{one.count:,}", one.fate)
            for one in shares
        ]
        say_table(("stage", "exception", "letters", "fate"), rows)
        _tell_counts(counts, to)
        typer.echo("Nothing was sent." if shares else "No letters are meant.")
    if _cannot(counts):
        raise typer.Exit(PROBLEM)


def tell(source: Source, done: Done) -> None:
    """Say what went, and exit with 1 if something that was meant did not."""
    run, counts = done.run, done.counts
    left = {**run.left_out, "left": counts["left"]}
    if source.as_json:
        told = {name: counts[name] for name in ("sent", "through", "parked")} | left
        facts = {"ok": not (done.stopped or _cannot(left)), "redrive": run.id, **told}
        say_json({**facts, "refused": done.refused, "stopped": done.stopped})
    else:
        where = f"to {run.topic or 'their origins'}"
        if run.through:
            where = f"through {run.through}"
        on = f"Went on with redrive {run.id}: sent" if done.resumed else "Sent"
        typer.echo(f"{on} {number(counts['sent'] + counts['through'], 'letter')} {where}.")
        if counts["parked"]:
            typer.echo(f"Parked {number(counts['parked'], 'letter')}.")
        _tell_counts(run.left_out, where)
        for letter, why in done.refused.items():
            typer.echo(safe(f"left: letter {letter}: {why}"), err=True)
        if counts["left"] > len(done.refused):
            typer.echo(f"left: {number(counts['left'], 'letter')} in all", err=True)
        if done.stopped:
            typer.echo(f"Stopped. Go on with: sparkguard dlq redrive --resume {run.id}", err=True)
        elif run.letters:
            typer.echo(f"What becomes of them: sparkguard dlq redrives {run.id}")
    if done.stopped:
        raise typer.Exit(_INTERRUPTED)
    if _cannot(left):
        raise typer.Exit(PROBLEM)


def _tell_counts(counts: Mapping[str, int], to: str) -> None:
    for fate, says in _SAYS.items():
        if count := counts.get(fate):
            typer.echo(safe(f"{number(count, 'letter')} {says.format(to=to)}."))


def _by_fate(shares: Iterable[Share]) -> dict[str, int]:
    counts = dict.fromkeys(_SAYS, 0)
    for one in shares:
        counts[one.fate] += one.count
    return counts


def _cannot(counts: Mapping[str, int]) -> bool:
    """Whether letters that were meant do not go, though nobody wanted that."""
    from sparkguard.redrive.fates import CANNOT

    return any(counts.get(name) for name in (*CANNOT, "left"))
