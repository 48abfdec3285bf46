"""Store: what may be asked of letters at rest, whichever sinks they lie in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self
from uuid import uuid4

from pyarrow import parquet as pq

from sparkguard import filesystem
from sparkguard.core.letter import Letter
from sparkguard.core.letter_row import letter_from_row
from sparkguard.deadletters.files import RESOLVED, Skipped, small_batches
from sparkguard.deadletters.journal import RESOLVED_AT
from sparkguard.deadletters.selection import Selection, one_query, quoted
from sparkguard.deadletters.table import Table
from sparkguard.deadletters.topic import Bounds
from sparkguard.dialects.base import Dialect
from sparkguard.errors import LettersError
from sparkguard.sinks.base import Sink
from sparkguard.sinks.file import FileSink

PARTS: Final = 24
"""Parts of the whole time, in each of which a group's letters are counted."""

_BATCH: Final = 20
_SAID: Final = 300
_EVERY: Final = Selection()
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(slots=True, kw_only=True)
class Group:
    """Letters of one fingerprint.

    Attributes:
        exception: class name.
        message: the beginning of that of one of its letters.
        stages, apps, causes: every one that occurs.
        over_time: how many in each of `PARTS` equal parts of the time of all groups together.
    """

    fingerprint: str
    count: int = 0
    exception: str = ""
    message: str = ""
    stages: set[str] = field(default_factory=set)
    apps: set[str] = field(default_factory=set)
    causes: set[str] = field(default_factory=set)
    first: datetime | None = None
    last: datetime | None = None
    over_time: list[int] = field(default_factory=lambda: [0] * PARTS)


class Answer(NamedTuple):
    """What a query gave; `more`: there were further rows."""

    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]
    more: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """Numbers of letters.

    Attributes:
        copies: stored letters that do not count, because another one with their id does.
        by: how many by sink, stage, category, cause, exception type and day.
    """

    letters: int
    copies: int
    groups: int
    first: datetime | None
    last: datetime | None
    by: Mapping[str, Mapping[str, int]]


class Store:
    """The letters of some sinks, each id once; a context manager, for it keeps a temporary folder.

    Files are read where they lie, topics are copied to that folder first. Of two letters with one
    id the whole one counts before a pointer to it, then the later one. What cannot be read is left
    out, and stands in `skipped`.

    Args:
        sinks: by name; file, kafka and memory sinks can be read back.
        bounds: what is read of topics.
        dialects: how letters may be spelled in topics.
        state: path or URI of the app's state: marks that are kept there count too, and letters of
            topics can be marked.

    Raises:
        LettersError: a topic or broker is not there, or a folder cannot be listed. Any method
            raises it for what is asked wrongly. A folder that is not there holds no letters.
    """

    def __init__(
        self,
        sinks: Mapping[str, Sink],
        *,
        bounds: Bounds = Bounds(),  # noqa: B008 - frozen
        dialects: Sequence[Dialect] = (),
        state: str | None = None,
    ) -> None:
        self._table = Table(sinks, bounds, dialects, state)
        self._state = state
        self._folders = {
            name: sink.path
            for name, sink in sinks.items()
            if isinstance(sink, FileSink) and not sink.path.endswith(".parquet")
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._table.close()

    @property
    def skipped(self) -> tuple[Skipped, ...]:
        """What lies among the letters and cannot be read, as far as it is known by now."""
        return tuple(self._table.skipped)

    @property
    def table(self) -> Table:
        """The same letters for SQL of one's own, written for this version."""
        return self._table

    def groups(self, selection: Selection = _EVERY) -> list[Group]:
        """The selected letters by fingerprint, the largest group first."""
        condition = selection.condition
        ((first, last),) = self._table.rows(
            f"select min(epoch_us(seen)), max(epoch_us(seen)) from letters where {condition}"
        )
        start, part = first or 0, (last or 0) - (first or 0) + 1
        rows = self._table.rows(f"""
            select fingerprint, stage, exception_type, app, cause,
                ((epoch_us(seen) - {start}) * {PARTS} // {part})::integer as part,
                count(*), min(epoch_us(seen)), max(epoch_us(seen)),
                left(any_value(message), {_SAID})
            from letters where {condition} group by all""")
        found: dict[str, Group] = {}
        for fingerprint, *facts in rows:
            name = fingerprint or ""
            _count(found.setdefault(name, Group(fingerprint=name)), *facts)
        return sorted(found.values(), key=lambda group: (-group.count, group.fingerprint))

    def rows(
        self, selection: Selection = _EVERY, limit: int | None = None
    ) -> Iterator[dict[str, Any]]:
        """The selected letters as rows; where there is a limit, the latest first.

        Beside the letter's own columns a row has ``sink``, ``place`` (file, or coordinates in the
        topic), ``seen`` (when it failed last, else its time) and ``resolved`` (why). They are
        copied to the temporary folder first, so that few of them are in memory.
        """
        condition = selection.condition
        if limit is None:
            # Sorting would hold payloads.
            yield from self._read(condition)
            return
        latest = self.ids(selection, limit)
        for at in range(0, len(latest), _BATCH):
            batch = latest[at : at + _BATCH]
            rows = [*self._read(f"id in ({', '.join(map(quoted, batch))})")]
            yield from sorted(rows, key=lambda row: batch.index(row["id"]))

    def ids(self, selection: Selection, limit: int) -> list[str]:
        """The ids of the selected letters, the latest first, at most so many."""
        rows = self._table.rows(
            f"select id from letters where {selection.condition} and id is not null "
            f"order by seen desc, id limit {int(limit)}"
        )
        return [name for (name,) in rows]

    def _read(self, condition: str) -> Iterator[dict[str, Any]]:
        file = self._table.new_file()
        self._table.copy(f"select * from letters where {condition}", file)
        with closing(pq.ParquetFile(file)) as found:
            for part in small_batches(found):
                yield from part.to_pylist()
        file.unlink()

    def letters(self, selection: Selection = _EVERY, limit: int | None = None) -> Iterator[Letter]:
        """The selected letters, the latest first.

        Raises:
            LettersError: one has a category or cause of a newer version.
        """
        for row in self.rows(selection, limit):
            try:
                yield letter_from_row(row)
            except ValueError as error:
                version = row.get("version") or "another version"
                told = f"The letter {row['id']} was written by {version}: {error}."
                raise LettersError(told) from None

    def one(self, letter_id: str) -> Letter | None:
        """The letter of this id, or None."""
        return next(self.letters(Selection(ids=(letter_id,)), 1), None)

    def sql(self, query: str, limit: int = 1_000) -> Answer:
        """What a query over the table ``letters`` gives, at most so many rows."""
        names, rows = self._table.answer(one_query(query), limit + 1)
        # As DuckDB names the second of two columns in a subquery: in JSON both are there.
        apart = (
            f"{name}_{before}" if (before := names[:at].count(name)) else name
            for at, name in enumerate(names)
        )
        return Answer(tuple(apart), rows[:limit], len(rows) > limit)

    def export(self, file: Path, selection: Selection = _EVERY) -> int:
        """Write the selected letters to a Parquet file that is a letter file itself."""
        return self._table.copy(
            "select * exclude (sink, place, seen, resolved) from letters "
            f"where {selection.condition}",
            file,
        )

    def resolve(self, selection: Selection, reason: str, by: str = "") -> int:
        """Mark the selected letters as resolved, in a file beside them, and say how many.

        Marks of letters in topics are files in the state.

        Letters that come later are not marked, whatever their fingerprint. Nothing is taken away.

        Raises:
            LettersError: one lies in a topic, and the store knows of no state.
        """
        given = replace(selection, unresolved=True)
        ((others,),) = self._table.rows(
            f"select list(distinct sink) from letters where {given.condition}"
        )
        folders = {name: filesystem.join(path, "_resolved") for name, path in self._folders.items()}
        for name in sorted({*(others or ())} - {*folders}):
            if self._state is None:
                raise LettersError(
                    f"Letters of the sink {name!r} cannot be marked: it is no folder of files, and "
                    "no state is named. Give --config or --state, or export them first."
                )
            folders[name] = filesystem.join(self._state, RESOLVED_AT)
        return sum(
            self._mark(folder, f"sink = {quoted(name)} and {given.condition}", reason, by)
            for name, folder in folders.items()
        )

    def _mark(self, folder: str, condition: str, reason: str, by: str) -> int:
        file = self._table.new_file()
        marked = self._table.copy(
            f"select id, {quoted(reason)} as reason, now() as marked_at, {quoted(by)} as by "
            f"from letters where {condition}",
            file,
        )
        if marked:
            fs, root = filesystem.resolve(folder)
            with file.open("rb") as source:
                filesystem.upload(fs, filesystem.join(root, f"{uuid4().hex}{RESOLVED}"), source)
        file.unlink()
        return marked

    def stats(self, selection: Selection = _EVERY) -> Stats:
        """How many letters there are, of what kinds, and from when to when."""
        facts = {
            "sink": "sink",
            "stage": "stage",
            "category": "category",
            "cause": "cause",
            "exception": "exception_type",
            "day": "strftime(seen, '%Y-%m-%d')",
        }
        named = ", ".join(f"{fact} as by_{name}" for name, fact in facts.items())
        columns = [f"by_{name}" for name in facts]
        sets = ", ".join(f"({column})" for column in columns)
        rows = self._table.rows(f"""
            select grouping({", ".join(columns)}), coalesce({", ".join(columns)}), count(*)
            from (select {named} from letters where {selection.condition})
            group by grouping sets ({sets}) order by 3 desc, 2""")
        by: dict[str, dict[str, int]] = {name: {} for name in facts}
        for bits, value, count in rows:
            # A bit for each column that is not in the set, the first one's the highest.
            absent = ((2 ** len(facts) - 1) ^ bits).bit_length()
            by[[*facts][len(facts) - absent]][value or ""] = count
        ((letters, groups, first, last),) = self._table.rows(
            "select count(*), count(distinct fingerprint), min(epoch_us(seen)), "
            f"max(epoch_us(seen)) from letters where {selection.condition}"
        )
        return Stats(
            letters=letters,
            copies=self._table.copies,
            groups=groups,
            first=_when(first),
            last=_when(last),
            by=by,
        )


def _count(  # noqa: PLR0913, PLR0917 - the columns of a row
    group: Group,
    stage: str | None,
    kind: str | None,
    app: str | None,
    cause: str | None,
    part: int | None,
    count: int,
    first: int | None,
    last: int | None,
    message: str | None,
) -> None:
    group.count += count
    group.exception = group.exception or kind or ""
    group.message = group.message or message or ""
    for into, one in ((group.stages, stage), (group.apps, app), (group.causes, cause)):
        into.update([one] if one else [])
    since, until = _when(first), _when(last)
    if part is not None and since is not None and until is not None:
        group.over_time[part] += count
        group.first = min(group.first or since, since)
        group.last = max(group.last or until, until)


def _when(since: int | None) -> datetime | None:
    return None if since is None else _EPOCH + timedelta(microseconds=since)
