"""Table: the letters of some sinks in DuckDB, as the view ``letters``, each id once.

Files are read where they lie. Which copies of a letter do not count is found on first use: one
pass over the ids, as 16 bytes each, then another over those that occur twice. Both go to the disk
where memory ends, and payloads take no part in it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any, Final, TypeVar

import duckdb
from pyarrow import parquet as pq

from sparkguard import filesystem
from sparkguard.core.letter_row import letter_table
from sparkguard.deadletters.files import (
    JOURNAL,
    LetterFiles,
    Skipped,
    journal_files,
    letter_files,
)
from sparkguard.deadletters.journal import JOURNAL_SCHEMA, REDRIVES, RESOLVED_AT
from sparkguard.deadletters.selection import pattern, quoted, told
from sparkguard.deadletters.topic import SPOOL_SCHEMA, Bounds, spool
from sparkguard.dialects.base import Dialect
from sparkguard.errors import LettersError
from sparkguard.sinks.base import Sink
from sparkguard.sinks.file import FileSink
from sparkguard.sinks.kafka import KafkaSink
from sparkguard.sinks.memory import MemorySink

MEMORY: Final = "600MB"
"""What DuckDB may use; beyond it, it goes to the disk. Python and Arrow come on top."""

_MISTAKES: Final = (
    duckdb.ParserException,
    duckdb.BinderException,
    duckdb.CatalogException,
    duckdb.ConversionException,
    duckdb.OutOfRangeException,
    duckdb.NotImplementedException,
)
"""What a query is at fault for; other errors may come from a file."""

STORED: Final = "stored"
"""The view of every row, second copies too, with ``_file`` and ``_row``."""

COPIES: Final = "copies"
"""The table of those that do not count, by ``_file`` and ``_row``."""

REDRIVEN: Final = "redriven"
"""The view of what became of letters in redrives, by ``run`` and ``id``."""

UID: Final = "coalesce(try_cast(id as uuid), cast(md5(id) as uuid))"
"""A letter's id in 16 bytes."""

SEEN: Final = 'coalesce(last_failed_at, first_failed_at, "timestamp")'
"""When a letter failed last, else its time."""

THROUGH_AGAIN: Final = f"""
    select distinct went.run, went.id from {REDRIVEN} as went
    join (select id, {SEEN} as failed from {STORED}) as other using (id)
    where went.what = 'through' and other.failed > went.seen"""
"""A query for run and id of what went through a flow and failed there again: as the same letter."""

# Compacting renames files within their folder: two of them at once must choose the same copy.
_FOLDER: Final = "regexp_replace(_file, '[^/]*$', '')"

T = TypeVar("T")


class Table:
    """Letters of some sinks for SQL; keeps a temporary folder until it is closed.

    Args:
        state: of the app, whose marks and journals count too; None for none.

    Attributes:
        files: those of each file sink that are read.
        skipped: what lies among the letters and cannot be read; may grow with each query.

    Raises:
        LettersError: a topic or broker is not there, or a folder cannot be listed.
    """

    def __init__(
        self,
        sinks: Mapping[str, Sink],
        bounds: Bounds,
        dialects: Sequence[Dialect],
        state: str | None = None,
    ) -> None:
        self.skipped: list[Skipped] = []
        self._temporary = tempfile.TemporaryDirectory(prefix="sparkguard-letters-")
        self.folder = Path(self._temporary.name)
        self.files: dict[str, LetterFiles] = {}
        self._sources: dict[str, list[str]] = {}
        self._numbers = count()
        self._marks: list[LetterFiles] = []
        self._listed: dict[str, tuple[str, int]] = {}
        self._copies: int | None = None
        self._duckdb = duckdb.connect(
            config={
                "memory_limit": MEMORY,
                "temp_directory": str(self.folder / "duckdb"),
                "preserve_insertion_order": False,
            }
        )
        try:
            self._duckdb.execute("set timezone = 'UTC'; set enable_progress_bar = false")
            for name, sink in sinks.items():
                self._add(name, sink, bounds, dialects)
            self._make_views()
            self._read_state(state)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Remove the temporary folder."""
        self._duckdb.close()
        self._temporary.cleanup()

    @property
    def copies(self) -> int:
        """How many stored letters do not count, because another one with their id does."""
        self._tried(lambda: None)
        return self._copies or 0

    def new_file(self) -> Path:
        """A fresh name in the temporary folder."""
        return self.folder / f"{next(self._numbers)}.parquet"

    def rows(self, query: str, limit: int | None = None) -> list[tuple[Any, ...]]:
        """What the query gives, all of it or so many rows, in memory."""
        return self.answer(query, limit)[1]

    def answer(
        self, query: str, limit: int | None = None
    ) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
        """The names of its columns, and its rows.

        Raises:
            LettersError: the query is wrong, or the letters cannot be read.
        """

        def run() -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
            found = self._duckdb.execute(query)
            names = tuple(str(column[0]) for column in found.description or ())
            return names, found.fetchall() if limit is None else found.fetchmany(limit)

        return self._tried(run)

    def copy(self, query: str, file: Path) -> int:
        """Write what the query gives to a file, and say how many rows that is."""
        # A group of rows is built in memory, so its bytes are bounded too.
        options = "format parquet, compression zstd, row_group_size_bytes '32MB'"
        command = f"copy ({query}\n) to {quoted(str(file))} ({options})"
        (written,) = self._tried(lambda: self._duckdb.execute(command).fetchone() or (0,))
        return int(written)

    # --- what is read -----------------------------------------------------------------------

    def _add(self, name: str, sink: Sink, bounds: Bounds, dialects: Sequence[Dialect]) -> None:
        match sink:
            case FileSink():
                self._listed[name] = sink.path, len(self.files)
                found = self._list(name)
                self.skipped += found.skipped
                if found.handler is not None:
                    self._duckdb.register_filesystem(found.handler)
            case KafkaSink():
                file = self.new_file()
                self.skipped += spool(sink, bounds, dialects, file)
                self._sources[name] = [str(file)]
            case MemorySink():
                file = self.new_file()
                pq.write_table(letter_table(sink.letters), file)
                self._sources[name] = [str(file)]
            case _:
                why = f"a {type(sink).__name__} cannot be read back"
                self.skipped.append(Skipped(f"sink {name}", why))

    def _list(self, name: str) -> LetterFiles:
        """Look for the files of a sink, without those that another one has too."""
        found = letter_files(*self._listed[name])
        for other, one in self.files.items():
            if other != name and one.fs == found.fs:
                for path in (*one.paths, *one.notes):
                    found.drop(path)
        self.files[name] = found
        return found

    def _read_state(self, state: str | None) -> None:
        journals: list[str] = []
        if state is not None:
            marks = letter_files(filesystem.join(state, RESOLVED_AT), len(self.files))
            self._marks.append(marks)
            self.skipped += marks.skipped
            at = filesystem.join(state, REDRIVES)
            journals, handler = journal_files(at, len(self.files) + 1)
            for one in (marks.handler, handler):
                if one is not None:
                    self._duckdb.register_filesystem(one)
        none = self.folder / f"none{JOURNAL}"
        pq.write_table(JOURNAL_SCHEMA.empty_table(), none)
        listed = ", ".join(quoted(pattern(one)) for one in (str(none), *journals))
        self._duckdb.execute(
            f"create or replace temp view {REDRIVEN} as select * from read_parquet([{listed}])"
        )

    def _make_views(self) -> None:
        none = self.folder / "none.parquet"
        pq.write_table(SPOOL_SCHEMA.empty_table(), none)
        parts = [f"select null::varchar as sink, {_FROM} {_files([str(none)])}"]
        for name, found in self.files.items():
            if found.paths:
                paths = _files([*found.paths.values()], union=found.schemas > 1)
                named = f"{quoted(name)} as sink, filename as place, {_FROM}"
                parts.append(f"select {named} {paths}")
        for name, files in self._sources.items():
            parts.append(f"select {quoted(name)} as sink, {_FROM} {_files(files)}")
        self._duckdb.execute(
            f"create or replace temp view {STORED} as " + " union all by name ".join(parts)
        )

    def _find_copies(self) -> None:
        if self._copies is not None:
            return
        self._mark_copies()
        (copies,) = self._duckdb.execute(f"select count(*) from {COPIES}").fetchone() or (0,)
        kept = f" anti join {COPIES} using (_file, _row)" if copies else ""
        marks = reason = ""
        if self._find_resolved():
            # A letter that comes again with the id of one that is dealt with failed anew.
            marks = (
                f" left join resolved on resolved.uid = {UID} "
                f"and coalesce({SEEN} <= resolved.marked, true)"
            )
            reason = "resolved.reason"
        self._duckdb.execute(f"""
            create or replace temp view letters as
            select {STORED}.* exclude (_file, _row), {SEEN} as seen,
                {reason or "null::varchar"} as resolved
            from {STORED}{kept}{marks}""")
        self._copies = copies

    def _find_resolved(self) -> bool:
        """Gather the marks; whether there are any. The latest reason counts."""
        notes = [note for found in self._every() for note in found.notes.values()]
        if notes:
            listed = ", ".join(quoted(pattern(note)) for note in notes)
            self._duckdb.execute(f"""
                create or replace temp table resolved as
                select {UID} as uid, arg_max(reason, marked_at) as reason, max(marked_at) as marked
                from read_parquet([{listed}]) group by uid""")
        return bool(notes)

    def _every(self) -> list[LetterFiles]:
        return [*self.files.values(), *self._marks]

    def _mark_copies(self) -> None:
        self._duckdb.execute(f"""
            create or replace temp table twice as
            select {UID} as uid from {STORED} group by uid having count(*) > 1""")
        self._duckdb.execute(f"""
            create or replace temp table {COPIES} as
            select _file, _row from (
                select _file, _row, row_number() over (
                    partition by {UID}
                    order by overflow is null desc, last_failed_at desc, {_FOLDER}, _file, _row
                ) as place
                from {STORED} where {UID} in (select uid from twice)
            ) where place > 1""")

    # --- what cannot be read ------------------------------------------------------------------

    def _tried(self, step: Callable[[], T]) -> T:
        """Do a step; where a file is at fault, again without it."""
        while True:
            try:
                self._find_copies()
                return step()
            except _MISTAKES as error:
                raise LettersError(told(error)) from None
            except duckdb.OutOfMemoryException as error:
                raise LettersError(f"That takes more than {MEMORY}: {told(error)}") from None
            except (duckdb.Error, OSError) as error:
                # A filesystem of Python's raises what it likes.
                if not (self._look_again() or self.drop_corrupt(str(error))):
                    raise LettersError(f"The letters cannot be read: {told(error)}") from error

    def _look_again(self) -> bool:
        """Where files are gone since, somebody compacted them: what there is now is read."""
        moved = [name for name, found in self.files.items() if found.gone()]
        for name in moved:
            self._list(name)
        if moved:
            self._begin_again()
        return bool(moved)

    def _begin_again(self) -> None:
        # What counted may have stood in a file that is left out now.
        self._copies = None
        while True:
            try:
                self._make_views()
            except (duckdb.Error, OSError) as error:
                if not self._drop(str(error)):
                    raise LettersError(f"The letters cannot be read: {told(error)}") from error
            else:
                return

    def drop_corrupt(self, said: str) -> bool:
        """Leave out the files that cannot be read; whether there were any.

        DuckDB names the file as a rule; where it does not, all of them are read.
        """
        dropped = self._drop(said)
        if dropped:
            self._begin_again()
        return dropped

    def _drop(self, said: str) -> bool:
        dropped = False
        for found in self._every():
            for one in found.corrupt(found.named(said)):
                found.drop(one.place)
                self.skipped.append(one)
                dropped = True
        return dropped


_FROM: Final = (
    "filename as _file, file_row_number as _row, * exclude (filename, file_row_number) from"
)


def selected(paths: Sequence[str], *, union: bool) -> str:
    """A query for every row of these files, with ``_file`` and ``_row``."""
    return f"select {_FROM} {_files(paths, union=union)}"


def _files(paths: Sequence[str], *, union: bool = False) -> str:
    listed = ", ".join(quoted(pattern(path)) for path in paths)
    options = f"filename = true, file_row_number = true, union_by_name = {union}"
    # A folder's name is no column: `date=…` is where a letter was stored, not when it failed.
    return f"read_parquet([{listed}], {options}, hive_partitioning = false)"
