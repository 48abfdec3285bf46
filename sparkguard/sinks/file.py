"""file: letters as rows of Parquet files, on any filesystem.

They lie under ``<path>/date=YYYY-MM-DD/`` and are read by DuckDB, pandas and Spark without
sparkguard. Every `flush` publishes a file of its own, so a stream with few failures makes many
small files; compaction joins them.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Final
from uuid import uuid4

import pyarrow as pa
from pyarrow import fs as pafs
from pyarrow import parquet as pq

from sparkguard import filesystem
from sparkguard.core.letter import Letter
from sparkguard.core.letter_row import LETTER_SCHEMA, letter_table
from sparkguard.errors import ConfigError, SinkError
from sparkguard.sinks.base import SinkTask, Writer

BUFFER_LETTERS: Final = 1_000
"""A writer holds fewer letters than this in memory …"""

BUFFER_BYTES: Final = 4 << 20
"""… and fewer bytes than this, one letter apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSink:
    """Writes letters as Parquet files; a file is never replaced.

    On a cluster every worker must reach the path: a local one is only right in local mode or on
    a shared mount.

    Attributes:
        path: folder, or URI of pyarrow or fsspec (``s3://…``); a local one is made absolute
            here, because workers have another working directory.
    """

    path: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", filesystem.absolute(self.path))

    def __repr__(self) -> str:
        return f"FileSink(path={filesystem.without_password(self.path)!r})"

    def open(self, task: SinkTask) -> Writer:
        """A writer for one task; touches no file before the first letter."""
        return FileWriter(self.path, task)

    def check(self, name: str, source_topics: frozenset[str]) -> None:
        """Write a small file and delete it.

        Raises:
            ConfigError: the URI's scheme is unknown.
            SinkError: the folder cannot be written to.
        """
        del source_topics
        try:
            fs, folder = filesystem.resolve(self.path)
            probe = filesystem.temporary_name(filesystem.join(folder, "check"))
            filesystem.write_atomically(fs, probe, b"")
            filesystem.delete(fs, probe)
        except ConfigError:
            raise
        except Exception as error:
            msg = f"cannot write to {filesystem.without_password(self.path)!r}: {error}."
            raise SinkError(msg, sink=name) from error

    def refuses(self, letter: Letter) -> str | None:
        """Refuse a record that was read from this sink's own folder."""
        file = letter.record.file
        if file is None or not filesystem.absolute(file).startswith(self.path + "/"):
            return None
        return (
            f"The record comes from {file!r}, which lies in this sink's own folder "
            f"{filesystem.without_password(self.path)!r}."
        )


class FileWriter:
    """Buffers letters, spills them to an unfinished file, publishes that on `flush`."""

    def __init__(self, path: str, task: SinkTask) -> None:
        self._path = path
        self._task = task
        self._letters: list[Letter] = []
        self._bytes = 0
        self._part: _Part | None = None

    def write(self, letter: Letter) -> None:
        """Take a letter; a full buffer becomes a row group of the unfinished file."""
        self._letters.append(letter)
        self._bytes += _size(letter)
        if len(self._letters) >= BUFFER_LETTERS or self._bytes >= BUFFER_BYTES:
            self._guarded(self._spill)

    def flush(self) -> None:
        """Publish what was written as one file, fsynced."""
        if self._letters or self._part is not None:
            self._guarded(self._publish)

    def close(self) -> None:
        """Remove the unfinished file as best can be."""
        self._letters.clear()
        if self._part is not None:
            self._part.discard()
            self._part = None

    def _guarded(self, step: Callable[[], None]) -> None:
        try:
            step()
        except Exception as error:
            self.close()
            msg = f"cannot write letters to {filesystem.without_password(self._path)!r}: {error}."
            raise SinkError(msg, sink=self._task.name) from error

    def _spill(self) -> None:
        if self._part is None:
            self._part = _Part(self._path, _file_name(self._task))
        if self._letters:
            self._part.add(letter_table(self._letters))
        self._letters.clear()
        self._bytes = 0

    def _publish(self) -> None:
        self._spill()
        if self._part is not None:
            self._part.publish()
            self._part = None


class _Part:
    """One unfinished file: beside its final place if that is local, else on the local disk.

    An object store makes an object of half an upload when its stream is dropped; so nothing is
    uploaded before it is whole.
    """

    def __init__(self, folder: str, name: str) -> None:
        self._fs, root = filesystem.resolve(folder)
        self._final = filesystem.join(root, f"date={datetime.now(UTC):%Y-%m-%d}", name)
        self._temporary: Path | None = None
        self._file: IO[bytes]
        if isinstance(self._fs, pafs.LocalFileSystem):
            self._temporary = Path(filesystem.temporary_name(self._final))
            self._temporary.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._temporary.open("xb")
        else:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by publish or discard
        self._parquet = pq.ParquetWriter(self._file, LETTER_SCHEMA, compression="zstd")

    def add(self, table: pa.Table) -> None:
        self._parquet.write_table(table)

    def publish(self) -> None:
        self._parquet.close()
        if self._temporary is None:
            filesystem.upload(self._fs, self._final, self._file)
            self._file.close()
            return
        filesystem.fsync(self._file)
        self._file.close()
        filesystem.publish_local(str(self._temporary), self._final)

    def discard(self) -> None:
        for step in (self._parquet.close, self._file.close):
            with suppress(Exception):
                step()
        if self._temporary is not None:
            with suppress(OSError):
                self._temporary.unlink(missing_ok=True)


def _file_name(task: SinkTask) -> str:
    # Spark skips files whose names start with an underscore or a dot.
    app = re.sub(r"[^A-Za-z0-9._-]", "_", task.app)[:80].lstrip("._") or "app"
    batch = "none" if task.batch_id is None else task.batch_id
    who = f"b{batch}-p{task.partition}-t{task.task_attempt_id}"
    return f"{app}-{who}-{uuid4().hex}.parquet"


def _size(letter: Letter) -> int:
    record, failure = letter.record, letter.failure
    size = 500 + len(failure.message) + len(failure.trace) + len(record.columns or "")
    size += len(record.key or b"") + len(record.value or b"")
    for name, value in record.headers:
        size += len(name) + len(value or b"")
    return size
