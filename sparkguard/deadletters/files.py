"""Files: the letter files of a file sink, those that can be read and those that cannot."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa
from pyarrow import fs as pafs
from pyarrow import parquet as pq

from sparkguard import filesystem
from sparkguard.core.letter_row import LETTER_SCHEMA
from sparkguard.errors import LettersError

RESOLVED: Final = ".resolved"
"""Ends the names of Parquet files with the ids of letters that are dealt with, and why."""

JOURNAL: Final = ".journal"
"""Ends the names of Parquet files that say what became of letters in a redrive."""

_AT_ONCE: Final = 8
_LONG_AGO: Final = datetime(1970, 1, 1, tzinfo=UTC)
_NEEDED: Final = ("id", "category", "cause")
_OURS: Final = ("sink", "place", "seen", "resolved", "filename", "file_row_number", "_file", "_row")
"""Columns that the table of letters has beside those of a file."""

_MARKS: Final = pa.schema(
    [
        ("id", pa.string()),
        ("reason", pa.string()),
        ("marked_at", pa.timestamp("us", tz="UTC")),
    ]
)
_READ_BYTES: Final = 4 << 20
_READ_ROWS: Final = 1_000


@dataclass(frozen=True, slots=True)
class Skipped:
    """Something that lies among the letters and was left out.

    Attributes:
        place: the file, or the topic.
        why: half a sentence.
        count: of files or messages.
    """

    place: str
    why: str
    count: int = 1


@dataclass(frozen=True, slots=True)
class LetterFiles:
    """The files below a sink's folder, as they were when it was looked at.

    Attributes:
        paths: what DuckDB is given, by the path on the filesystem.
        schemas: how many different schemas they have.
        notes: likewise of the files beside them that say which letters are resolved.
        handler: what DuckDB must be given to reach them, None for local ones.
    """

    fs: pafs.FileSystem
    paths: dict[str, str]
    skipped: tuple[Skipped, ...]
    schemas: int
    notes: dict[str, str]
    handler: Any = None

    def named(self, told: str) -> list[str]:
        """Those of the files that a message names; all of them where it names none."""
        every = {**self.paths, **self.notes}
        return [path for path, known in every.items() if known in told] or [*every]

    def gone(self) -> bool:
        """Whether one of the files is not there any more."""
        every = [*self.paths, *self.notes]
        there = pafs.FileType.File
        return any(one.type != there for one in self.fs.get_file_info(every)) if every else False

    def corrupt(self, paths: list[str]) -> Iterator[Skipped]:
        """Those of `paths` that cannot be read to their end; reads them whole."""
        for path in paths:
            try:
                with closing(pq.ParquetFile(path, filesystem=self.fs)) as file:
                    for _ in small_batches(file):
                        pass
            except (OSError, pa.ArrowException) as error:
                yield Skipped(path, _first_line(error))

    def drop(self, path: str) -> None:
        """Leave a file out."""
        self.paths.pop(path, None)
        self.notes.pop(path, None)


def small_batches(file: pq.ParquetFile) -> Iterator[pa.RecordBatch]:
    """The file's rows, a few megabytes at a time, however large a letter is."""
    for group in range(file.num_row_groups):
        facts = file.metadata.row_group(group)
        each = facts.total_byte_size // max(facts.num_rows, 1)
        rows = min(max(1, _READ_BYTES // max(each, 1)), _READ_ROWS)
        yield from file.iter_batches(batch_size=rows, row_groups=[group])


def letter_files(path: str, number: int) -> LetterFiles:
    """Look at every Parquet file below a folder: its end is read, which says whether it is whole.

    Args:
        number: of the sink; makes DuckDB's name of a filesystem that is not local.

    Raises:
        LettersError: the folder cannot be listed; one that is not there is empty.
        ConfigError: the URI's scheme is unknown.
    """
    fs, root = filesystem.resolve(path)
    try:
        single = fs.get_file_info(root).type == pafs.FileType.File
        found = (root,) if single else filesystem.list(fs, root, recursive=True)
    except OSError as error:
        shown = filesystem.without_password(path)
        raise LettersError(f"{shown} cannot be listed: {_first_line(error)}.") from error
    local = isinstance(fs, pafs.LocalFileSystem)
    if local:
        # One name for each file, however many links lead to it: compacting deletes by name.
        found = tuple({os.path.realpath(one): one for one in reversed(found)}.values())[::-1]
    parquet = [one for one in found if single or one.endswith(".parquet")]
    notes = [one for one in found if one.endswith(RESOLVED) and not single]
    handler = None if local else _for_duckdb(fs, number)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        looked = list(pool.map(lambda one: _look(fs, one, _NEEDED, LETTER_SCHEMA), parquet))
        marked = list(pool.map(lambda one: _look(fs, one, _MARKS.names, _MARKS), notes))
    faults = [*zip([*parquet, *notes], [*looked, *marked], strict=True)]
    prefix = "" if handler is None else f"{handler.protocol}://"
    return LetterFiles(
        fs,
        {one: prefix + one for one, (fit, _) in zip(parquet, looked, strict=True) if fit},
        tuple(Skipped(one, why) for one, (fit, why) in faults if not fit),
        len({columns for fit, columns in looked if fit}),
        {one: prefix + one for one, (fit, _) in zip(notes, marked, strict=True) if fit},
        handler,
    )


def journal_files(path: str, number: int) -> tuple[list[str], Any]:
    """The journals below a folder as DuckDB is given them, and the handler that it needs."""
    fs, root = filesystem.resolve(path)
    handler = None if isinstance(fs, pafs.LocalFileSystem) else _for_duckdb(fs, number)
    prefix = "" if handler is None else f"{handler.protocol}://"
    found = filesystem.list(fs, root, recursive=True)
    return [prefix + one for one in found if one.endswith(JOURNAL)], handler


def _look(
    fs: pafs.FileSystem, path: str, needed: Sequence[str], known: pa.Schema
) -> tuple[bool, str]:
    """Whether it is a letter file; its columns, or why it is none."""
    try:
        schema = pq.read_schema(path, filesystem=fs).remove_metadata()
    except (OSError, pa.ArrowException) as error:
        return False, _first_line(error)
    if missing := [name for name in needed if name not in schema.names]:
        return False, f"it has no column {missing[0]!r}, so it is no file of letters"
    for one in known:
        at = schema.get_field_index(one.name)
        if at >= 0 and not _alike(schema.field(at).type, one.type):
            return False, f"its column {one.name!r} is {schema.field(at).type}, not {one.type}"
    if strange := [name for name in _OURS if name in schema.names]:
        return False, f"it has a column {strange[0]!r}, which letters have only when they are read"
    return True, str(schema)


def _alike(found: pa.DataType, known: pa.DataType) -> bool:
    """Whether both are text, or bytes, or numbers …: other writers choose other widths."""
    tests = (
        lambda one: pa.types.is_string(one) or pa.types.is_large_string(one),
        lambda one: pa.types.is_binary(one) or pa.types.is_large_binary(one),
        lambda one: pa.types.is_integer(one) and one != pa.uint64(),
        pa.types.is_boolean,
        pa.types.is_timestamp,
    )
    if pa.types.is_nested(found) and pa.types.is_nested(known):
        if pa.types.is_struct(known):
            names = {one.name for one in known}
            return pa.types.is_struct(found) and names == {one.name for one in found}
        return not pa.types.is_struct(found) and _alike(found.value_type, known.value_type)
    return pa.types.is_null(found) or any(test(found) and test(known) for test in tests)


def _for_duckdb(fs: pafs.FileSystem, number: int) -> Any:
    """The filesystem as fsspec has it, under a protocol of its own: DuckDB asks by protocol."""
    from fsspec.implementations.arrow import ArrowFSWrapper

    def stripped(path: str) -> str:
        # The wrapper's own takes the bucket of an object store for a host.
        return path.partition("://")[2] or path

    def modified(_: Any, path: str) -> datetime:
        # Letter files are never replaced, so any time will do where a filesystem has none.
        return fs.get_file_info(stripped(path)).mtime or _LONG_AGO

    facts = {
        "protocol": f"letters{number}",
        "modified": modified,
        "_strip_protocol": staticmethod(stripped),
    }
    wrapper: Any = type("LetterFiles", (ArrowFSWrapper,), facts)
    return wrapper(fs)


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
