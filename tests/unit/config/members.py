"""Members for tests: the built-ins, and a plugin with a handler and a sink that have options."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any

from sparkguard.core.failure import Failure
from sparkguard.core.letter import Letter
from sparkguard.core.outcome import Continue, Outcome
from sparkguard.dialects.base import Dialect
from sparkguard.dialects.native import NativeDialect
from sparkguard.hookspecs import Members, hookimpl
from sparkguard.plugins import load
from sparkguard.sinks.base import SinkTask, Writer


class Colour(StrEnum):
    """An option with few values."""

    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, slots=True, kw_only=True)
class PickyHandler:
    """Has one option of every shape."""

    limit: int
    ratio: float = 0.5
    names: tuple[str, ...] = ()
    colour: Colour = Colour.RED
    wait: timedelta = timedelta(seconds=1)
    folder: Path | None = None
    strict: bool = False

    def __post_init__(self) -> None:
        if self.limit > 100:
            msg = "A limit above 100 helps nobody."
            raise ValueError(msg)

    def decide(self, failure: Failure) -> Outcome:
        """Always `Continue`."""
        return Continue()


@dataclass(frozen=True, slots=True, kw_only=True)
class TapeSink:
    """A sink with a dialect."""

    dialect: Dialect = field(default_factory=NativeDialect)
    overflow: str | None = None

    def open(self, task: SinkTask) -> Writer:
        """Not opened here."""
        raise NotImplementedError

    def check(self, name: str, source_topics: frozenset[str]) -> None:
        """Nothing to check."""

    def refuses(self, letter: Letter) -> str | None:
        """Nothing is refused."""
        return None


class Picky:
    """The plugin."""

    @hookimpl
    def register_handlers(self) -> Mapping[str, Any]:
        return {"picky": PickyHandler}

    @hookimpl
    def register_sinks(self) -> Mapping[str, Any]:
        return {"tape": TapeSink}

    @hookimpl
    def register_causes(self) -> Mapping[str, str]:
        return {"redis.exceptions.BusyLoadingError": "transient", "KeyError": "transient"}


def members() -> Members:
    """The built-ins and `Picky`."""
    return load([("picky", Picky())])
