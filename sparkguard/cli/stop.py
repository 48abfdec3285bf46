"""sparkguard stop: ask a running app to stop, where signals do not reach."""

from __future__ import annotations

from pathlib import Path

import typer

from sparkguard.cli.answer import say_json, told


def stop(
    app: str = typer.Argument("", help="Name of the app; --config knows it too."),
    state: str = typer.Option("", help="The app's state: a folder, or the URI of a filesystem."),
    config: Path | None = typer.Option(None, help="The settings file with app and state."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Set the stop marker in the state of APP: its queries stop between two batches.

    The app sees the marker within seconds, finishes the batch in hand, and exits with 0. A
    state that is not given is looked for in `state/APP`.

    For example:

        sparkguard stop orders --state s3://bucket/state/orders

        sparkguard stop --config guard.yaml
    """
    if not app and config is None:
        raise typer.BadParameter("name the app, or give --config.")
    if state and config is not None:
        raise typer.BadParameter("give --state or --config, not both.")
    with told(as_json=as_json):
        from sparkguard.driver.state import State
        from sparkguard.errors import ConfigError

        path: str | None = state or None
        if config is not None:
            from sparkguard.config.load import load

            settings = load(config)
            if app and app != settings.app:
                raise ConfigError(f"{config} is about the app {settings.app!r}, not {app!r}.")
            app, path = settings.app, settings.state.path
        place = State.at(path, app)
        if not place.exists():
            raise ConfigError(
                f"There is no state of the app {app!r} at {place.path}: give --state or --config."
            )
        place.request_stop()
    if as_json:
        say_json({"ok": True, "app": app, "state": place.path})
    else:
        typer.echo(f"Asked {app!r} to stop, in {place.path}.")
