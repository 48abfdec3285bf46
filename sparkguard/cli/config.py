"""sparkguard config: check a settings file, print its schema."""

from __future__ import annotations

import sys
from pathlib import Path

import typer

from sparkguard.cli.answer import refuse, say_json, told

config_app = typer.Typer(help="Check settings and describe them.", no_args_is_help=True)

AsJson = typer.Option(False, "--json", help="Print JSON.")


@config_app.command("check")
def check(
    file: Path = typer.Argument(help="The settings file, YAML."),
    module: str = typer.Option(
        "",
        help="Module with the stages, as `pipeline` or `app.jobs`; it is imported. "
        "A stage in the file that it has not is a problem then.",
    ),
    as_json: bool = AsJson,
) -> None:
    """Check a settings file without starting anything.

    Every handler, sink, dialect and exception that it names must exist; exceptions are
    imported, from the current folder too. No sink is reached.

    For example:

        sparkguard config check guard.yaml

        sparkguard config check guard.yaml --module pipeline --json
    """
    from sparkguard.cli.checking import checked

    # As `python -m` does: the modules that the file names lie beside it, as a rule.
    if "" not in sys.path:
        sys.path.insert(0, "")
    with told(as_json=as_json):
        found = checked(file, module or None)
    if found.problems:
        refuse(found.problems, as_json=as_json)
    if as_json:
        say_json({"ok": True, "problems": [], "stages": found.stages, "sinks": found.sinks})
        return
    typer.echo(f"{file} is fine: {_count(found.stages, 'stage')}, {_count(found.sinks, 'sink')}.")


@config_app.command("schema")
def schema() -> None:
    """Print JSON Schema (draft 2020-12) of the settings, with the options of installed plugins.

    Example, for editors that speak the YAML language server:

        sparkguard config schema > guard.schema.json

        # first line of guard.yaml:
        # yaml-language-server: $schema=guard.schema.json
    """
    with told(as_json=False):
        from sparkguard.config.schema import schema as described
        from sparkguard.plugins import load

        say_json(described(load()))


def _count(things: list[str], word: str) -> str:
    return f"{len(things)} {word}{'' if len(things) == 1 else 's'}"
