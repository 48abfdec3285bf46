"""sparkguard dlq resolve, compact: the commands that change where letters are kept."""

from __future__ import annotations

from dataclasses import asdict, replace

import typer

from sparkguard.cli.answer import say_json
from sparkguard.cli.letters import Source, chosen, reading


@reading
def resolve(
    source: Source,
    which: str = typer.Argument("", help="An id or a fingerprint, or the beginning of one."),
    reason: str = typer.Option(..., help="Why they need no more work; kept with them."),
    anything: bool = typer.Option(False, "--everything", help="Where nothing else selects."),
) -> None:
    """Mark letters as resolved: `ls`, `stats` and `export` leave them out, unless `--all`.

    The marks are files beside the letters, which stay. A letter that comes later is not marked,
    whatever its fingerprint. Marks of letters in topics are files in the app's state.

    For example:

        sparkguard dlq resolve 9c01d2 --reason "fixed in 1.4" --config guard.yaml

        sparkguard dlq resolve --stage price --until 2h --reason outage --path dead-letters
    """
    from sparkguard.deadletters.lock import user

    which = which.strip()
    selection = replace(source.selection(), unresolved=False)
    if not (which or selection or anything):
        raise typer.BadParameter("say which letters: an id, a fingerprint, or options that select.")
    if not reason.strip():
        raise typer.BadParameter("a reason has at least one word.")
    with source.store() as store:
        if which:
            selection = chosen(store, source, which)
        count = store.resolve(selection, reason.strip(), user())
    if source.as_json:
        say_json({"ok": True, "resolved": count})
    else:
        typer.echo(f"Marked {count:,} letter{'' if count == 1 else 's'} as resolved.")


@reading
def compact(source: Source) -> None:
    """Join small letter files into large ones, and leave second copies out.

    New files are written before old ones are deleted, so it may be killed at any time. Letters
    that are written meanwhile are left for the next time. Sinks that keep no files are passed over.

    For example:

        sparkguard dlq compact --path s3://letters/orders

        sparkguard dlq compact --config guard.yaml --json
    """
    from sparkguard.deadletters.compact import compact as compacted
    from sparkguard.sinks.file import FileSink

    if source.topic or replace(source.selection(), unresolved=False):
        raise typer.BadParameter("only whole folders are compacted: --path or --config.")
    done = {
        name: asdict(compacted(sink))
        for name, sink in source.sinks().items()
        if isinstance(sink, FileSink)
    }
    if source.as_json:
        say_json(done)
        return
    for name, one in done.items():
        typer.echo(
            f"{name}: {one['before']:,} files are {one['after']:,} now, "
            f"{one['copies']:,} second copies left out."
        )
        for skipped in one["skipped"]:
            typer.echo(f"left as it is: {skipped['place']}: {skipped['why']}", err=True)
