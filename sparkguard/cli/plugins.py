"""sparkguard plugins: what is installed, and what it brings."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from sparkguard.cli.answer import PROBLEM, say_json, told

if TYPE_CHECKING:
    from sparkguard.plugins import Installed


def list_plugins(as_json: bool = typer.Option(False, "--json", help="Print JSON.")) -> None:
    """List every plugin in use, with its members and hooks; the built-ins come first.

    A plugin that cannot be used is listed with the reason, and the exit code is 1. The
    environment variable SPARKGUARD_PLUGINS (a comma list of names) restricts what is loaded.

    For example:

        sparkguard plugins

        SPARKGUARD_PLUGINS= sparkguard plugins --json
    """
    from sparkguard.plugins import installed

    with told(as_json=as_json):
        found = installed()
    if as_json:
        say_json([asdict(one) for one in found])
    else:
        _show(found)
    if any(one.error for one in found):
        raise typer.Exit(PROBLEM)


def _show(found: list[Installed]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("plugin", "distribution", "version", "brings", box=None, pad_edge=False)
    for one in found:
        lines = [f"{kind}s: {', '.join(names)}" for kind, names in one.members.items() if names]
        if one.watches:
            lines.append(f"watches: {', '.join(one.watches)}")
        if one.error:
            lines.append(f"cannot be used: {one.error}")
        table.add_row(one.name, one.distribution or "-", one.version or "-", "\n".join(lines))
    Console().print(table, markup=False)
