"""Selection: which letters are meant, as a condition of SQL."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime

import duckdb

from sparkguard.core.instant import utc
from sparkguard.errors import LettersError


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What a letter must be to be meant; empty, it means all of them.

    Raises:
        LettersError: `where` is no condition.

    Attributes:
        ids: its id, or the beginning of it, is one of these.
        fingerprints: likewise.
        whole: ids and fingerprints are given whole.
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
    whole: bool = False
    unresolved: bool = False
    where: str = ""

    def __post_init__(self) -> None:
        if self.where:
            # A parenthesis too many would let another condition in, or another statement.
            for text in (f"({self.where}\n)", self.where):
                one_query(f"select 1 from letters where {text}")

    def __bool__(self) -> bool:
        return self != Selection()

    @property
    def condition(self) -> str:
        """The SQL that stands behind ``where``; a line break ends a comment in the user's part."""
        test = "{} = {}" if self.whole else "starts_with({}, {})"
        parts = [
            *_any("id", self.ids, test),
            *_any("fingerprint", self.fingerprints, test),
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


def one_query(text: str) -> str:
    """The one query in `text`, without what stands behind it.

    Raises:
        LettersError: it is no query, or more than one.
    """
    try:
        found = duckdb.extract_statements(text)
    except duckdb.Error as error:
        raise LettersError(told(error)) from None
    if len(found) != 1 or found[0].type != duckdb.StatementType.SELECT:
        problem = "Only one query is taken, which reads: select … from letters."
        raise LettersError(problem)
    return str(found[0].query).rstrip().rstrip(";")


def told(error: BaseException) -> str:
    """The first line of DuckDB's message, as a sentence."""
    said = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return said if said.endswith((".", "!", "?")) else f"{said}."


def pattern(path: str) -> str:
    """The path as DuckDB takes it, which would read ``*``, ``?`` and ``[`` as a pattern."""
    return re.sub(r"[*?\[]", r"[\g<0>]", path)


def quoted(text: str) -> str:
    """The text as a literal of SQL."""
    return "'" + text.replace("\0", "").replace("'", "''") + "'"


def _any(column: str, values: tuple[str, ...], test: str) -> list[str]:
    said = " or ".join(test.format(column, quoted(value)) for value in values)
    return [f"({said})"] if said else []


def _time(when: datetime) -> str:
    return f"timestamptz {quoted(utc(when).isoformat())}"
