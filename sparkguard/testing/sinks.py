"""What every sink must do, as tests: inherit the suite, say how to make and how to read yours.

The suite knows nothing of pytest but the names of its tests::

    class TestMySink(SinkSuite):
        @pytest.fixture(autouse=True)
        def place(self, tmp_path):
            self.path = tmp_path

        def make_sink(self):
            return MySink(path=str(self.path))

        def stored(self, sink):
            return read_my_letters(self.path)
"""

# ruff: noqa: S101, S301 - tests assert, and what they unpickle they have pickled
from __future__ import annotations

import multiprocessing
import pickle
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from sparkguard.core.failure import Category, Cause, Failure
from sparkguard.core.letter import Letter, letter_id
from sparkguard.core.record import Header, Record
from sparkguard.sinks.base import Sink, SinkTask, Writer

_WHEN: Final = datetime(2024, 2, 29, 12, 0, 0, 123000, tzinfo=UTC)
_ODD_HEADERS: Final[tuple[Header, ...]] = (
    ("trace-id", b"1"),
    ("trace-id", b"2"),
    ("empty", b""),
    ("null", None),
    ("bytes", b"\xff\x00\xfe"),
    ("", b"no name"),
    ("sparkguard.id", b"of an earlier life"),
    ("sparkguard.offset", b"7"),
)
_ODD_RECORDS: Final = (
    Record(key=b"k", value=b'{"id": 1}'),
    Record(key=None, value=b"null key"),
    Record(key=b"tombstone", value=None),
    Record(key=b"", value=b""),
    Record(key=b"\xff\xfe", value=b"\x80 is no UTF-8"),
    Record(key=b"headers", value=b"odd", headers=_ODD_HEADERS),
    Record(key=b"large", value=bytes(range(256)) * 3_500),
)


def sample_letters(topic: str = "orders") -> list[Letter]:
    """Letters of odd records, such as real topics hold; each has an id and coordinates."""
    return [_letter(record, topic, offset) for offset, record in enumerate(_ODD_RECORDS)]


def _letter(record: Record, topic: str, offset: int) -> Letter:
    failure = Failure(
        stage="decode",
        category=Category.DESERIALIZATION,
        cause=Cause.POISON,
        exception_types=("builtins.ValueError", "builtins.Exception"),
        message="naïve \N{PILE OF POO} message",
        trace="Traceback\n  line 1",
        fingerprint="f00",
        attempts=offset,
        first_failed_at=None if offset % 2 else _WHEN,
        last_failed_at=_WHEN + timedelta(seconds=offset),
        record=Record(
            key=record.key,
            value=record.value,
            headers=record.headers,
            timestamp=_WHEN - timedelta(days=1),
            topic=topic,
            partition=offset % 3,
            offset=offset,
        ),
        app="suite",
        flow="orders",
        query_name=None if offset % 2 else "query",
        batch_id=offset,
    )
    return Letter(id=letter_id(failure), failure=failure, version="0")


class SinkSuite(ABC):
    """The contract of `sparkguard.sinks.base`, for any sink; each test is given a fresh place."""

    @abstractmethod
    def make_sink(self) -> Sink:
        """Settings that point to this test's own, empty place."""

    @abstractmethod
    def stored(self, sink: Sink) -> Iterable[Letter]:
        """All letters at rest there; one stored twice may come twice."""

    def task(self) -> SinkTask:
        """The task that the suite writes as; the same each time, like a task tried again."""
        return SinkTask(app="suite", name="suite", batch_id=1, partition=2, task_attempt_id=3)

    def test_travels(self) -> None:
        """A sink goes to the workers by pickle and is the same there."""
        sink = self.make_sink()
        assert pickle.loads(pickle.dumps(sink)) == sink

    def test_keeps_every_byte(self) -> None:
        """A letter comes back as it was written: bytes, headers, times, facts."""
        self._write(sink := self.make_sink(), letters := sample_letters())
        self._holds(sink, letters)

    def test_passes_its_check(self) -> None:
        """A place that works passes the check that a query makes at its start."""
        sink = self.make_sink()
        sink.check("suite", frozenset({"a-source-topic"}))
        self._write(sink, letters := sample_letters()[:1])
        self._holds(sink, letters)

    def test_flush_acknowledges(self) -> None:
        """P2: what was flushed is stored, whatever becomes of the writer afterwards."""
        sink, letters = self.make_sink(), sample_letters()
        writer = sink.open(self.task())
        writer.write(letters[0])
        writer.flush()
        self._holds(sink, letters[:1])
        writer.write(letters[1])
        writer.flush()
        self._holds(sink, letters[:2])
        writer.close()
        self._holds(sink, letters[:2])

    def test_later_writers_erase_nothing(self) -> None:
        """P3: the same task, tried again with fewer letters, takes none of the first try's away."""
        sink, letters = self.make_sink(), sample_letters()
        self._write(sink, letters)
        self._write(sink, letters[:1])
        self._write(sink, [])
        self._holds(sink, letters)

    def test_close_without_flush(self) -> None:
        """A task that fails closes its writer: nothing is raised, earlier letters stay."""
        sink, letters = self.make_sink(), sample_letters()
        self._write(sink, letters[:1])
        writer = sink.open(self.task())
        writer.write(letters[1])
        writer.close()
        writer.close()
        found = {letter.id for letter in self.stored(sink)}
        assert letters[0].id in found
        assert found <= {letter.id for letter in letters}

    def test_two_writers_at_once(self) -> None:
        """Two tasks of one process write at the same time; each is acknowledged for itself."""
        sink, letters = self.make_sink(), sample_letters()
        writers = [sink.open(self.task()) for _ in range(2)]
        for at, letter in enumerate(letters):
            writers[at % 2].write(letter)
        for writer in writers:
            writer.flush()
            writer.close()
        self._holds(sink, letters)

    def test_many_letters(self) -> None:
        """More letters than any buffer holds; ids are compared, not counts."""
        record = Record(key=b"k", value=b"v" * 100)
        letters = [_letter(record, "many", offset) for offset in range(5_000)]
        self._write(sink := self.make_sink(), letters)
        self._holds(sink, letters)

    def test_writes_from_another_process(self) -> None:
        """A worker is another process; its letters arrive, and it ends by itself."""
        sink, letters = self.make_sink(), sample_letters()
        sent = pickle.dumps((sink, self.task(), letters))
        process = multiprocessing.get_context("spawn").Process(target=_deliver, args=(sent,))
        process.start()
        process.join(60)
        assert process.exitcode == 0
        self._holds(sink, letters)

    def test_unprintable_facts(self) -> None:
        """P17: a message that no UTF-8 holds is no reason to lose the letter."""
        record = Record(value=b"v", topic="t", partition=0, offset=0)
        failure = Failure(
            stage="s",
            category=Category.PROCESSING,
            cause=Cause.POISON,
            exception_types=("x.\udcffY",),
            message="\ud800 lone",
            record=record,
        )
        letter = Letter(id=letter_id(failure), failure=failure)
        self._write(sink := self.make_sink(), [letter])
        (found,) = {one.id: one for one in self.stored(sink)}.values()
        assert found.id == letter.id
        assert found.record == record

    def _write(self, sink: Sink, letters: Sequence[Letter]) -> None:
        _write(sink.open(self.task()), letters)

    def _holds(self, sink: Sink, letters: Sequence[Letter]) -> None:
        found = {letter.id: letter for letter in self.stored(sink)}
        expected = {letter.id: letter for letter in letters}
        assert found.keys() == expected.keys()
        for identity, letter in expected.items():
            assert found[identity] == letter


def _write(writer: Writer, letters: Sequence[Letter]) -> None:
    try:
        for letter in letters:
            writer.write(letter)
        writer.flush()
    finally:
        writer.close()


def _deliver(sent: bytes) -> None:
    sink, task, letters = pickle.loads(sent)
    _write(sink.open(task), letters)
