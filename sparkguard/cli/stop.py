"""sparkguard stop: ask a running app to stop, where signals do not reach."""

from __future__ import annotations

from pathlib import Path

import typer

from sparkguard.cli.answer import say_json, told
from sparkguard.cli.apps import APP, CONFIG, STATE, find_app


def stop(
    app: str = APP,
    state: str = STATE,
    config: Path | None = CONFIG,
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Set the stop marker in the state of APP: its queries stop between two batches.

    The app sees the marker within seconds, finishes the batch in hand, and exits with 0. A
    state that is not given is looked for in `state/APP`.

    For example:

        sparkguard stop orders --state s3://bucket/state/orders

        sparkguard stop --config guard.yaml
    """
    with told(as_json=as_json):
        found = find_app(app, state, config)
        found.state.request_stop()
    if as_json:
        say_json({"ok": True, "app": found.name, "state": found.state.path})
    else:
        typer.echo(f"Asked {found.name!r} to stop, in {found.state.path}.")
