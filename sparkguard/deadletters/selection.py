"""Selection: which letters are meant, as a condition of SQL."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sparkguard.core.instant import utc


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What a letter must be to be meant; empty, it means all of them.

    Attributes:
        ids: its id, or the beginning of it, is one of these.
        fingerprints: likewise.
        stages: its stage is one of these.
        since: seen then or later.
        until: seen before.
        unresolved: nobody marked it as resolved.
        where: a condition in DuckDB's SQL over the columns of ``letters``; a user's own text.
    """

    ids: tuple[str, ...] = ()
    fingerprints: tuple[str, ...] = ()
    stages: tuple[str, ...] = ()
    since: datetime | None = None
    until: datetime | None = None
    unresolved: bool = False
    where: str = ""

    def __bool__(self) -> bool:
        return self != Selection()

    @property
    def condition(self) -> str:
        """The SQL that stands behind ``where``; a line break ends a comment in the user's part."""
        parts = [
            *_any("id", self.ids, "starts_with({}, {})"),
            *_any("fingerprint", self.fingerprints, "starts_with({}, {})"),
            *_any("stage", self.stages, "{} = {}"),
        ]
        if self.since is not None:
            parts.append(f"seen >= {_time(self.since)}")
        if self.until is not None:
            parts.append(f"seen < {_time(self.until)}")
        if self.unresolved:
            parts.append("resolved is null")
        if self.where:
            parts.append(f"({self.where}\n)")
        return " and ".join(parts) or "true"


def quoted(text: str) -> str:
    """The text as a literal of SQL."""
    return "'" + text.replace("\0", "").replace("'", "''") + "'"


def _any(column: str, values: tuple[str, ...], test: str) -> list[str]:
    said = " or ".join(test.format(column, quoted(value)) for value in values)
    return [f"({said})"] if said else []


def _time(when: datetime) -> str:
    return f"timestamptz {quoted(utc(when).isoformat())}"
