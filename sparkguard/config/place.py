"""A place: where a setting stands in its file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from sparkguard.errors import ConfigError, InvalidSettingError, UnknownNameError

KeyPath = tuple[str | int, ...]
"""The keys and list positions that lead to a setting."""


@dataclass(frozen=True, slots=True)
class Place:
    """A position in a file; line and column count from 1."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


@dataclass(frozen=True, slots=True)
class Places:
    """Where each key and each value of a file stands; empty for settings made in code."""

    # Not compared: settings of two files that say the same are equal.
    keys: dict[KeyPath, Place] = field(default_factory=dict, compare=False)
    values: dict[KeyPath, Place] = field(default_factory=dict, compare=False)

    def error(self, problem: str, path: KeyPath, *, at_key: bool = False) -> InvalidSettingError:
        """The error for `problem` at `path`, placed at the nearest setting that was written."""
        place = self.find(path, at_key=at_key)
        return InvalidSettingError(
            problem,
            key_path=dotted(path),
            file=place.file if place else None,
            line=place.line if place else None,
            column=place.column if place else None,
        )

    def find(self, path: KeyPath, *, at_key: bool = False) -> Place | None:
        """The place of the setting at `path`, else of the nearest one around it."""
        if at_key and path in self.keys:
            return self.keys[path]
        for length in range(len(path), -1, -1):
            if path[:length] in self.values:
                return self.values[path[:length]]
        return None

    def placed(
        self, error: UnknownNameError, path: KeyPath, *, at_key: bool = False
    ) -> UnknownNameError:
        """The same error, with place and key path in front."""
        place = self.find(path, at_key=at_key)
        where = f"{place}: {dotted(path)}" if place else dotted(path)
        return UnknownNameError(error.kind, error.name, error.known, where=where)


def dotted(path: KeyPath) -> str:
    """`path` as it is written in messages: ``stages.price.redact[0]``."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def together(problems: Sequence[ConfigError]) -> ConfigError:
    """One error for all `problems`, one a line."""
    if len(problems) == 1:
        return problems[0]
    return InvalidSettingError("\n".join(dict.fromkeys(str(problem) for problem in problems)))
