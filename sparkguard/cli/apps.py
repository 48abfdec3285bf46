"""Apps: the options that say which app is meant, and where its state is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer

if TYPE_CHECKING:
    from sparkguard.config.model import Settings
    from sparkguard.driver.state import State

APP: Final = typer.Argument("", help="Name of the app; --config knows it too.")
STATE: Final = typer.Option("", help="The app's state: a folder, or the URI of a filesystem.")
CONFIG: Final = typer.Option(None, help="The settings file with app and state.")


@dataclass(frozen=True, slots=True, kw_only=True)
class App:
    """An app that has kept something; `settings` where they were named."""

    name: str
    state: State
    settings: Settings | None


def find_app(app: str, state: str, config: Path | None) -> App:
    """The app that the options name.

    Raises:
        BadParameter: they name none, or name its state twice.
        SparkguardError: the settings are wrong or another app's, or there is no such state.
    """
    if not app and config is None:
        raise typer.BadParameter("name the app, or give --config.")
    if state and config is not None:
        raise typer.BadParameter("give --state or --config, not both.")
    from sparkguard.driver.state import State
    from sparkguard.errors import ConfigError

    path: str | None = state or None
    settings = None
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
    return App(name=app, state=place, settings=settings)
