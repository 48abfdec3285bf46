"""sparkguard dlq: look at letters, wherever they lie."""

from __future__ import annotations

import codecs
import json
import os
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer

from sparkguard.cli.answer import refuse, say_json
from sparkguard.cli.letters import Source, chosen, reading
from sparkguard.cli.shown import (
    SHOWN_BYTES,
    Form,
    clock,
    listed,
    number,
    payload,
    plain,
    redacted,
    safe,
    say_table,
    sparkline,
)

if TYPE_CHECKING:
    from sparkguard.deadletters.store import Group, Store

dlq_app = typer.Typer(
    help="Look at dead letters, in files and in topics, of sparkguard and of other tools.\n\n"
    "Exit codes: 0 done, 1 it could not be done or there is no such letter, 2 the command line "
    "is wrong. What could not be read is named on stderr and left out.",
    no_args_is_help=True,
)
_COLUMNS: Final = 8
"""A query with more of them is answered with a line for each value."""


@dlq_app.command("ls")
@reading
def ls(
    source: Source,
    limit: int = typer.Option(50, min=1, help="So many groups, the largest first."),
) -> None:
    """List failures by fingerprint: how many letters, of what, since when, and when most.

    For example:

        sparkguard dlq ls --config guard.yaml --since 2h

        sparkguard dlq ls --topic orders.dead --bootstrap-servers localhost:9092 --json
    """
    with source.store() as store:
        groups = store.groups(source.selection())
    if source.as_json:
        told = {"letters": _total(groups), "groups": [_group_json(one) for one in groups[:limit]]}
        say_json({**told, "skipped": [asdict(one) for one in store.skipped]})
        return
    if not groups:
        typer.echo("No letters.")
        return
    rows = [
        (
            safe(one.fingerprint) or "-",
            f"{one.count:,}",
            listed(one.stages),
            safe(one.exception) or "-",
            clock(one.first),
            clock(one.last),
            sparkline(one.over_time),
        )
        for one in groups[:limit]
    ]
    heads = ("fingerprint", "letters", "stage", "exception", "first seen", "last seen", "over time")
    say_table(heads, rows)
    more = f", of which {limit} are shown" if len(groups) > limit else ""
    letters, kinds = number(_total(groups), "letter"), number(len(groups), "group")
    typer.echo(f"{letters} in {kinds}{more}. Times are UTC.")


@dlq_app.command("show")
@reading
def show(
    source: Source,
    which: str = typer.Argument(help="An id or a fingerprint, or the beginning of one."),
    form: Form = typer.Option(Form.AUTO, "--as", help="How key and value are shown."),
    limit: int = typer.Option(1, min=1, help="Of a fingerprint so many letters, the latest first."),
    redact: bool = typer.Option(False, help="Hide what record and exception say."),
    size: int = typer.Option(SHOWN_BYTES, "--bytes", min=0, help="So many bytes of a payload."),
) -> None:
    """Show a letter, or the latest letters of a failure: facts, stack trace, headers, payload.

    Characters that a terminal would obey are spelled out.

    For example:

        sparkguard dlq show 3f2a --config guard.yaml

        sparkguard dlq show 9c01d2 --path dead-letters --limit 3 --redact
    """
    if not which.strip():
        raise typer.BadParameter("name an id or a fingerprint.")
    with source.store() as store:
        found = _found(store, source, which.strip(), limit)
    if source.as_json:
        say_json([plain(redacted(row) if redact else row) for row in found])
        return
    for row in found:
        typer.echo(_told(redacted(row) if redact else row, form, size), color=False)


@dlq_app.command("stats")
@reading
def stats(source: Source) -> None:
    """Count letters by sink, stage, category, cause, exception and day.

    For example:

        sparkguard dlq stats --path s3://letters/orders --since 2026-01-31
    """
    with source.store() as store:
        found = store.stats(source.selection())
    if source.as_json:
        say_json({**asdict(found), "skipped": [asdict(one) for one in store.skipped]})
        return
    said = f"{number(found.letters, 'letter')} in {number(found.groups, 'group')}"
    copies = f", and {found.copies:,} second copies that do not count" if found.copies else ""
    typer.echo(f"{said}{copies}.")
    if found.first is not None:
        typer.echo(f"From {clock(found.first)} to {clock(found.last)}, UTC.")
    rows = [
        (name, safe(value) or "-", f"{number:,}")
        for name, counts in found.by.items()
        for value, number in [*counts.items()][:20]
    ]
    say_table(("by", "", "letters"), rows)


@dlq_app.command("sql")
@reading
def sql(
    source: Source,
    query: str = typer.Argument(help="One query over the table `letters`, in DuckDB's SQL."),
    limit: int = typer.Option(1_000, min=1, help="So many rows."),
) -> None:
    """Ask with SQL; the table `letters` has each letter once, with its sink, place and time `seen`.

    A query may read whatever file you may; it writes none.

    For example:

        sparkguard dlq sql "select stage, count(*) from letters group by all" --path dead-letters

        sparkguard dlq sql "select try(decode(value)->>'$.id') from letters" --path dead --json
    """
    if replace(source.selection(), unresolved=False):
        raise typer.BadParameter("a query has its own `where`; leave out the options that select.")
    with source.store() as store:
        answer = store.sql(query, limit)
    if source.as_json:
        rows = [plain(dict(zip(answer.columns, row, strict=True))) for row in answer.rows]
        say_json({"rows": rows, "more": answer.more})
        return
    cells = [tuple(map(_cell, row)) for row in answer.rows]
    if len(answer.columns) > _COLUMNS:
        for row in cells:
            pairs = zip(map(safe, answer.columns), row, strict=True)
            typer.echo("".join(f"{name:<16} {cell}\n" for name, cell in pairs), color=False)
    else:
        say_table(tuple(map(safe, answer.columns)), cells)
    if answer.more:
        typer.echo(f"There are more than {limit:,} rows; see --limit.", err=True)


@dlq_app.command("export")
@reading
def export(
    source: Source,
    out: Path = typer.Argument(help="A file that is not there yet: .parquet or .jsonl."),
    redact: bool = typer.Option(False, help="Hide what record and exception say; JSONL only."),
) -> None:
    """Write letters to one file: Parquet that is a letter file itself, or a line of JSON each.

    In JSONL bytes are text where they are UTF-8, else {"base64": "…"}. The file appears whole.

    For example:

        sparkguard dlq export today.parquet --config guard.yaml --since 24h

        sparkguard dlq export price.jsonl --path dead-letters --stage price --redact
    """
    if out.suffix not in {".parquet", ".jsonl"}:
        raise typer.BadParameter("the file's name must end in .parquet or .jsonl.")
    if redact and out.suffix == ".parquet":
        raise typer.BadParameter("--redact is for .jsonl; a Parquet file keeps every byte.")
    if out.exists() or not out.parent.is_dir():
        why = "is already there" if out.exists() else "lies in a folder that is not there"
        refuse([f"{out} {why}."], as_json=source.as_json)
    partial = out.with_name(f".{out.name}.{os.getpid()}.part")
    try:
        with source.store() as store:
            if out.suffix == ".parquet":
                count = store.export(partial, source.selection())
            else:
                rows = store.rows(source.selection())
                count = _write_lines(
                    partial, (plain(redacted(row) if redact else row) for row in rows)
                )
        partial.replace(out)
    except OSError as error:
        refuse([f"{out} cannot be written: {error.strerror or error}."], as_json=source.as_json)
    finally:
        partial.unlink(missing_ok=True)
    if source.as_json:
        say_json({"ok": True, "file": str(out), "letters": count})
    else:
        typer.echo(f"Wrote {number(count, 'letter')} to {out}.")


def _found(store: Store, source: Source, which: str, limit: int) -> list[dict[str, Any]]:
    """The letter of that id, else the latest letters of that fingerprint; exits if none."""
    selection = chosen(store, source, which)
    if not selection.ids and not source.as_json:
        (one,) = store.groups(selection)
        shown = number(min(limit, one.count), "letter")
        head = f"{safe(one.fingerprint)}: {number(one.count, 'letter')} of {listed(one.stages)}"
        times = f"from {clock(one.first)} to {clock(one.last)}"
        typer.echo(f"{head}, {times}; the latest {shown}:\n", color=False)
    return [*store.rows(selection, limit)]


_FACTS: Final = (
    "id",
    "app",
    "flow",
    "query_name",
    "batch_id",
    "stage",
    "category",
    "cause",
    "attempts",
    "timed_out",
    "exception_type",
    "fingerprint",
    "path",
    "payload",
    "state_key",
    "state_version",
    "state",
    "first_failed_at",
    "last_failed_at",
    "timestamp",
    "sink",
    "place",
    "file",
    "columns",
    "replays",
    "version",
    "overflow",
    "resolved",
)


def _told(row: dict[str, Any], form: Form, size: int) -> str:
    facts = {name: row.get(name) for name in _FACTS}
    if row.get("topic") is not None:
        facts["record"] = f"{row['topic']}[{row['partition']}]@{row['offset']}"
    lines = [
        f"{name:<16} {safe(value)}"
        for name, value in facts.items()
        if value not in (None, "", False)
    ]
    headers = [
        f"  {safe(one['key'])}: {payload(one['value'], Form.AUTO)}" for one in row["headers"] or ()
    ]
    parts = [
        ("message", [safe(row.get("message") or "")]),
        ("trace", [safe(row.get("trace") or "").rstrip()]),
        ("headers", headers),
        ("key", [_bounded(row.get("key"), form, size)]),
        ("value", [_bounded(row.get("value"), form, size)]),
    ]
    for title, said in parts:
        if any(said):
            lines += ["", f"{title}:", *said]
    return "\n".join(lines) + "\n"


def _bounded(value: bytes | None, form: Form, size: int) -> str:
    if value is None or len(value) <= size:
        return payload(value, form)
    cut = value[:size]
    if form is not Form.HEX:
        # What is cut is no JSON any more, and may end within a character.
        text = codecs.getincrementaldecoder("utf-8")("strict" if form is Form.AUTO else "replace")
        try:
            cut, form = text.decode(cut).encode(), Form.TEXT
        except UnicodeDecodeError:
            form = Form.HEX
    return f"{payload(cut, form)}\n… {size:,} of {len(value):,} bytes; see --bytes."


def _cell(value: Any) -> str:
    found = plain(value)
    return safe(
        found if isinstance(found, str) else json.dumps(found, ensure_ascii=False, default=str)
    )


def _group_json(group: Group) -> dict[str, Any]:
    return asdict(group) | {
        name: sorted(getattr(group, name)) for name in ("stages", "apps", "causes")
    }


def _total(groups: Iterable[Group]) -> int:
    return sum(one.count for one in groups)


def _write_lines(file: Path, rows: Iterable[dict[str, Any]]) -> int:
    count = 0
    with file.open("x", encoding="utf-8") as into:
        for row in rows:
            into.write(json.dumps(row, default=str) + "\n")
            count += 1
    return count
