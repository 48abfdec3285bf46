import resource
import signal
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from sparkguard.core.letter import Letter
from sparkguard.core.letter_row import letter_from_row
from sparkguard.core.record import Record
from sparkguard.errors import ConfigError, SinkError
from sparkguard.filesystem import list as list_files
from sparkguard.filesystem import read, resolve
from sparkguard.sinks.base import Sink, SinkTask
from sparkguard.sinks.file import BUFFER_LETTERS, FileSink
from sparkguard.testing import SinkSuite, sample_letters

TASK = SinkTask(app="orders", batch_id=7, partition=2, task_attempt_id=9)


def _read(path: Path) -> list[Letter]:
    """What DuckDB finds under a folder, as a stranger would read it."""
    if not any(path.glob("**/*.parquet")):
        return []
    query = f"select * exclude (date) from read_parquet('{path}/**/*.parquet')"
    connection = duckdb.connect()
    names = [column[0] for column in connection.execute(query).description or ()]
    return [letter_from_row(dict(zip(names, row, strict=True))) for row in connection.fetchall()]


def _left_over(path: Path) -> list[str]:
    return [file.name for file in path.glob("**/*") if file.is_file() and "_tmp" in file.name]


class TestFileSink(SinkSuite):
    """The file sink does what every sink must."""

    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path) -> None:
        self.path = tmp_path / "dead letters"

    def make_sink(self) -> Sink:
        return FileSink(path=str(self.path))

    def stored(self, sink: Sink) -> Iterable[Letter]:
        return _read(self.path)


class TestFileSinkOnFsspec(SinkSuite):
    """The file sink does so on any fsspec filesystem, too."""

    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path) -> None:
        self.path = tmp_path
        self.uri = f"simplecache::file://{tmp_path}"

    def make_sink(self) -> Sink:
        return FileSink(path=self.uri)

    def stored(self, sink: Sink) -> Iterable[Letter]:
        return _read(self.path)


def test_names(tmp_path: Path) -> None:
    """A file's name says who wrote it and is unique; folders are Hive partitions by date."""
    sink = FileSink(path=str(tmp_path))
    for _ in range(2):
        writer = sink.open(TASK)
        writer.write(sample_letters()[0])
        writer.flush()
    files = sorted(tmp_path.glob("date=????-??-??/orders-b7-p2-t9-*.parquet"))
    assert len(files) == 2


@pytest.mark.parametrize("app", ["_app", "../up", ".hidden", "", "a/b", "ü"])
def test_no_app_hides_its_letters(tmp_path: Path, app: str) -> None:
    """Spark skips names that begin with an underscore or a dot; slashes would make folders."""
    writer = FileSink(path=str(tmp_path)).open(SinkTask(app=app))
    writer.write(sample_letters()[0])
    writer.flush()
    (file,) = tmp_path.glob("date=*/*.parquet")
    assert file.name[0] not in "._"


def test_readers_never_see_half_a_file(tmp_path: Path) -> None:
    """Before the flush nothing is there that a glob for Parquet finds, though much is written."""
    writer = FileSink(path=str(tmp_path)).open(TASK)
    for _ in range(BUFFER_LETTERS + 1):
        writer.write(sample_letters()[0])
    assert _left_over(tmp_path)
    assert _read(tmp_path) == []
    writer.flush()
    assert not _left_over(tmp_path)
    assert len(_read(tmp_path)) == BUFFER_LETTERS + 1
    writer.close()


def test_close_removes_what_was_not_flushed(tmp_path: Path) -> None:
    """A failed task leaves no unfinished file behind."""
    writer = FileSink(path=str(tmp_path)).open(TASK)
    for _ in range(BUFFER_LETTERS):
        writer.write(sample_letters()[0])
    writer.close()
    assert not _left_over(tmp_path)


def test_large_letters_are_spilled(tmp_path: Path) -> None:
    """A buffer is bounded in bytes too: 6 letters of 900 kB are not held together."""
    writer = FileSink(path=str(tmp_path)).open(TASK)
    for _ in range(6):
        writer.write(sample_letters()[-1])
    assert _left_over(tmp_path)
    writer.close()


@pytest.fixture
def small_files() -> Iterator[None]:
    """This process can write no file beyond 100 kB, as if the disk were full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.usefixtures("small_files")
def test_a_full_disk_is_an_error(tmp_path: Path) -> None:
    """P2: a letter that cannot be written raises, and nothing half-written stays."""
    sink = FileSink(path=str(tmp_path))
    writer = sink.open(TASK)
    for at in range(3):
        # Bytes that do not compress.
        value = b"".join((at * 1_000_003 + n * n * 7919).to_bytes(8, "big") for n in range(40_000))
        writer.write(_with_value(value))
    with pytest.raises(SinkError, match="File too large"):
        writer.flush()
    writer.close()
    assert not _left_over(tmp_path)
    assert _read(tmp_path) == []


def test_a_failing_filesystem_is_an_error() -> None:
    """P2: whatever an fsspec filesystem raises becomes a sink error that names it."""
    fsspec.register_implementation("failing", FailingFileSystem, clobber=True)
    sink = FileSink(path="failing://bucket/dead")
    FailingFileSystem.failing = False
    sink.check("dead", frozenset())
    writer = sink.open(TASK)
    writer.write(sample_letters()[0])
    FailingFileSystem.failing = True
    with pytest.raises(SinkError, match="bucket is on fire"):
        writer.flush()
    with pytest.raises(SinkError, match="cannot write to 'failing://bucket/dead'"):
        sink.check("dead", frozenset())
    writer.close()
    fs, path = resolve(sink.path)
    assert [file for file in list_files(fs, path, recursive=True) if read(fs, file)] == []


class FailingFileSystem(MemoryFileSystem):  # type: ignore[misc]  # fsspec has no types
    """A filesystem that can be told to fail."""

    protocol = "failing"
    failing = False
    store: dict[str, Any] = {}  # noqa: RUF012 - as in the parent
    pseudo_dirs = [""]  # noqa: RUF012 - as in the parent

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        if self.failing and "r" not in mode:
            msg = "the bucket is on fire"
            raise RuntimeError(msg)
        return super()._open(path, mode, **options)


def test_check_says_what_is_wrong(tmp_path: Path) -> None:
    """A place that cannot be written to fails with a sentence before the query starts."""
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(SinkError, match="cannot write to"):
        FileSink(path=str(tmp_path / "file")).check("dead", frozenset())
    with pytest.raises(ConfigError, match="No filesystem for 'nope://x'"):
        FileSink(path="nope://x").check("dead", frozenset())


def test_check_leaves_nothing(tmp_path: Path) -> None:
    """The check makes the folder and leaves it empty."""
    FileSink(path=str(tmp_path / "new")).check("dead", frozenset())
    assert list((tmp_path / "new").iterdir()) == []


def test_a_relative_path_is_the_drivers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers have another working directory, so the path is made absolute on the driver."""
    monkeypatch.chdir(tmp_path)
    assert FileSink(path="dead-letters").path == str(tmp_path / "dead-letters")


def test_refuses_its_own_files(tmp_path: Path) -> None:
    """P16: records read from the sink's own folder are refused, others are not."""
    sink = FileSink(path=str(tmp_path / "dead letters"))
    inside = f"file://{tmp_path}/dead%20letters/date=2024-01-01/a.parquet"
    assert sink.refuses(_of_file(inside))
    assert sink.refuses(_of_file(f"{tmp_path}/dead letters/a.parquet"))
    assert sink.refuses(_of_file(f"file://{tmp_path}/dead%20letters-2/a.parquet")) is None
    assert sink.refuses(_of_file("s3://bucket/a.json")) is None
    assert sink.refuses(_of_file(None)) is None


def _of_file(file: str | None) -> Letter:
    letter = sample_letters()[0]
    return _with_record(letter, Record(value=b"v", file=file))


def _with_value(value: bytes) -> Letter:
    return _with_record(sample_letters()[0], Record(value=value))


def _with_record(letter: Letter, record: Record) -> Letter:
    return replace(letter, failure=replace(letter.failure, record=record))
