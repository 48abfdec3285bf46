"""sparkguard audit: whether every record is where the ledger says."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer

from sparkguard.cli.answer import PROBLEM, say_json, told
from sparkguard.cli.apps import find_app
from sparkguard.cli.shown import safe, say_table

if TYPE_CHECKING:
    from sparkguard.audit.check import Asked, Audit, Check

_CONFIG: Final = typer.Option(..., help="The settings file: app, state and sinks.")


def audit(
    config: Path = _CONFIG,
    checkpoint: list[str] = typer.Option(
        [], help="A query's checkpoint: only such queries; may be repeated."
    ),
    output: list[str] = typer.Option(
        [], help="A folder of Parquet files that it writes; may be repeated."
    ),
    output_topic: list[str] = typer.Option([], help="A topic that it writes; may be repeated."),
    output_servers: str = typer.Option("", help="Where these topics are, host:port."),
    client: list[str] = typer.Option(
        [], help="A setting of librdkafka for them, key=value; may be repeated."
    ),
    flow: list[str] = typer.Option([], help="Only this flow; may be repeated."),
    holes: bool = typer.Option(
        False, "--holes", help="The source topics are compacted or transactional."
    ),
    allow_doubled: bool = typer.Option(
        False, "--allow-doubled", help="What is only there twice is no problem."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Compute the account again, from the ledger, the sinks, and what else is named.

    Each line is one thing that two sides say. Exit code 1: something is missing or doubled, or it
    cannot be read. Lost counts are said, and no problem.

    For example:

        sparkguard audit --config guard.yaml

        sparkguard audit --config guard.yaml --checkpoint s3://bucket/ckpt --output s3://bucket/out

        sparkguard audit --config guard.yaml --output-topic priced --output-servers localhost:9092
    """
    if bool(output_topic) != bool(output_servers):
        raise typer.BadParameter("--output-topic and --output-servers go together.")
    with told(as_json=as_json):
        from sparkguard.audit.check import Asked
        from sparkguard.audit.outputs import OutputTopic

        settings = dict(_pair(one) for one in client)
        topics = [
            OutputTopic(bootstrap_servers=output_servers, topic=topic, config=settings)
            for topic in output_topic
        ]
        asked = Asked(checkpoints=checkpoint, outputs=[*output, *topics], flows=flow, holes=holes)
        found = _audited(config, asked)
    passes = found.passes(allow_doubled=allow_doubled)
    if as_json:
        say_json({"ok": passes, **asdict(found)})
    else:
        _show(found, passes=passes)
    if not passes:
        raise typer.Exit(PROBLEM)


def _audited(config: Path, asked: Asked) -> Audit:
    from sparkguard.audit.audit import audit as compute
    from sparkguard.config.load import load as load_settings
    from sparkguard.config.resolve import sinks
    from sparkguard.driver.accounts import Accounts
    from sparkguard.driver.ledger import Ledger
    from sparkguard.plugins import load

    app, settings, members = find_app("", "", config), load_settings(config), load()
    accounts = Accounts(app.state)
    # On Spark Connect what is not settled yet stands as files.
    accounts.files()
    ledger = Ledger(app.state, accounts.pending)
    dialects = [*members.dialects.values()]
    return compute(app.name, ledger, sinks(settings, members), asked, dialects=dialects)


def _pair(said: str) -> tuple[str, str]:
    key, mark, value = said.partition("=")
    if not mark:
        raise typer.BadParameter(f"--client takes key=value, not {said!r}.")
    return key, value


def _show(found: Audit, *, passes: bool) -> None:
    from sparkguard.audit.places import LISTED

    heads = ("check", "of", "expected", "found", "", "")
    say_table(heads, [_row(check) for check in found.checks])
    for check in found.checks:
        if check.places:
            typer.echo(f"\n{check.of} places:")
            typer.echo("".join(f"  {safe(place)}\n" for place in check.places), nl=False)
            if len(check.places) == LISTED:
                typer.echo("  …")
    typer.echo(f"\n{found.app}: {'adds up' if passes else 'does not add up'}.")


def _row(check: Check) -> tuple[str, ...]:
    numbers = ("-" if one is None else f"{one:,}" for one in (check.expected, check.found))
    return (check.kind, safe(check.of), *numbers, check.verdict.value, safe(check.why))
