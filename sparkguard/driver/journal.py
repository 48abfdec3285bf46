"""The journal of an isolation: which rows of a batch are done, and which are to be tried next.

Rows are ranges of places in the batch as it was set aside. They are done from left to right, so
what is left is a stack of ranges, and the journal stays small however many bad rows there are.
It is stored before a range is halved and after it is done: a replay meets the same ranges.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import asdict, dataclass, field, replace
from typing import Any
from urllib.parse import quote, unquote

import msgspec

from sparkguard.core.failure import Failure
from sparkguard.core.ledger import Top
from sparkguard.driver.state import State

_FOLDER = "isolation"
_TOP = 20
_SHOWN = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """A file of rows that were set aside.

    Attributes:
        first: the number that its first row has in the file; the others follow without a gap.
    """

    name: str
    first: int
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Rows of one file: their places in it, from 0, the last one not included."""

    file: File
    start: int
    stop: int

    @property
    def all(self) -> bool:
        """Whether it is the whole file."""
        return (self.start, self.stop) == (0, self.file.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A batch that was set aside; never changed.

    Attributes:
        token: tells this plan from an earlier one of the same batch.
        folder: where the files are.
        schema: of the rows, as Spark's JSON.
        flows: those whose accounts of this batch are stored.
        offsets: digest of what the batch was planned to read; None where nobody knows.
    """

    token: str
    batch_id: int
    folder: str
    schema: str
    files: tuple[File, ...]
    flows: tuple[str, ...] = ()
    offsets: str | None = None

    @property
    def rows(self) -> int:
        """How many rows the batch has."""
        return sum(file.rows for file in self.files)

    def parts(self, rows: range) -> list[Part]:
        """Where these rows are."""
        found: list[Part] = []
        for begin, file in self._placed():
            start, stop = max(rows.start, begin), min(rows.stop, begin + file.rows)
            if start < stop:
                found.append(Part(file=file, start=start - begin, stop=stop - begin))
        return found

    def halves(self, rows: range) -> tuple[range, range]:
        """The rows in two: between two files where there are several, else in the middle."""
        middle = rows.start + len(rows) // 2
        edges = [begin for begin, _ in self._placed() if rows.start < begin < rows.stop]
        cut = min(edges, key=lambda edge: abs(edge - middle), default=middle)
        return range(rows.start, cut), range(cut, rows.stop)

    def _placed(self) -> Iterator[tuple[int, File]]:
        begin = 0
        for file in self.files:
            yield begin, file
            begin += file.rows


@dataclass(slots=True, kw_only=True)
class Progress:
    """What became of the rows so far.

    Attributes:
        token: of the plan.
        waiting: ranges that are to be tried, the next one last.
        calls: of the batch function, whole batch not counted.
        failed, retries: tries that failed, and those made again for the same rows.
        letters: ids of the letters before equal ones were numbered; without them two equal rows
            would be one letter.
        top: what failed, at most 20 kinds.
    """

    token: str
    waiting: list[tuple[int, int]]
    written: int = 0
    dead_lettered: int = 0
    skipped: int = 0
    calls: int = 0
    failed: int = 0
    retries: int = 0
    letters: list[str] = field(default_factory=list)
    top: list[Top] = field(default_factory=list)

    @property
    def done(self) -> int:
        """How many rows are written or have left."""
        return self.written + self.dead_lettered + self.skipped

    def counts(self) -> dict[str, int]:
        """What became of the rows, and what it took."""
        names = ("written", "dead_lettered", "skipped", "calls")
        return {name: getattr(self, name) for name in names}


class Journal:
    """One batch's plan and progress; `state` is None where nothing can be replayed."""

    def __init__(self, state: State | None, name: str, plan: Plan, progress: Progress) -> None:
        self._state = state
        self._name = name
        self.plan = plan
        self.progress = progress

    @property
    def next(self) -> range | None:
        """The rows to try now; None when all are done."""
        waiting = self.progress.waiting
        return range(*waiting[-1]) if waiting else None

    def split(self) -> None:
        """The next rows failed, and some of them are good: try their halves."""
        after, rows = self._after()
        first, second = self.plan.halves(rows)
        after.waiting += [(half.start, half.stop) for half in (second, first)]
        self._store(after)

    def written(self) -> None:
        """The next rows are written."""
        after, rows = self._after()
        after.written += len(rows)
        self._store(after)

    def left(self, fact: str, failure: Failure, letter: str | None) -> None:
        """The next rows have left: ``dead_lettered`` or ``skipped``."""
        after, rows = self._after()
        setattr(after, fact, getattr(after, fact) + len(rows))
        if letter is not None:
            after.letters.append(letter)
        _count(after.top, failure, len(rows))
        self._store(after)

    def _after(self) -> tuple[Progress, range]:
        """The progress without the next rows, and these."""
        after = deepcopy(self.progress)
        return after, range(*after.waiting.pop())

    def _store(self, after: Progress) -> None:
        """What the state did not take has not happened: nothing is built on it."""
        if self._state is not None:
            self._state.store(self._name, asdict(after))
        self.progress = after


class Journals:
    """The journals of a guard, by stage and query; at most one of each at a time."""

    def __init__(self, state: State | None = None) -> None:
        self._state = state
        self._known: dict[tuple[str, str | None], Journal | None] = {}
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return Journals, (self._state,)

    def find(self, stage: str, query_id: str | None) -> Journal | None:
        """The journal of this query's latest isolation; the state is asked once."""
        key = stage, query_id
        if query_id is None:
            return None
        with self._lock:
            if key not in self._known:
                self._known[key] = self._load(_name(stage, query_id))
            return self._known[key]

    def open(self) -> Iterator[tuple[str, str, Journal]]:
        """Those that stand in the state, with stage and query."""
        names = [] if self._state is None else self._state.names(_FOLDER)
        for name in names:
            place, _, part = name.rpartition(".")
            journal = self._load(place) if part == "plan" else None
            if journal is not None:
                stage, _, query = place.removeprefix(f"{_FOLDER}/").rpartition(".")
                yield unquote(stage), query, journal

    def begin(self, stage: str, query_id: str | None, plan: Plan, failed: int = 1) -> Journal:
        """Begin to isolate: once the plan is stored, a replay follows it.

        Args:
            failed: tries of the whole batch before.
        """
        state = self._state if query_id else None
        name = _name(stage, query_id)
        progress = _begun(plan)
        progress.failed, progress.retries = failed, failed - 1
        journal = Journal(state, f"{name}.progress", plan, progress)
        with self._lock:
            if state is not None:
                state.store(f"{name}.plan", asdict(plan))
            self._known[stage, query_id] = journal
        return journal

    def drop(self, stage: str, query_id: str | None, journal: Journal) -> bool:
        """Forget this journal, whose batch was committed; whether nobody else has.

        The query's thread and Spark's, which tells of commits, may both come for it.
        """
        with self._lock:
            if self._known.get((stage, query_id)) is not journal:
                return False
            if self._state is not None and query_id:
                for part in ("progress", "plan"):
                    self._state.delete(f"{_name(stage, query_id)}.{part}")
            self._known[stage, query_id] = None
        return True

    def _load(self, name: str) -> Journal | None:
        if self._state is None:
            return None
        document: Any = self._state.load(f"{name}.plan")
        if document is None:
            return None
        plan = msgspec.convert(document, Plan)
        known = self._state.load(f"{name}.progress")
        progress = msgspec.convert(known, Progress) if known else None
        if progress is None or progress.token != plan.token:
            progress = _begun(plan)
        return Journal(self._state, f"{name}.progress", plan, progress)


def _begun(plan: Plan) -> Progress:
    """All rows together have just failed: their halves wait."""
    rows = range(plan.rows)
    halves = plan.halves(rows) if len(rows) > 1 else (rows,)
    waiting = [(half.start, half.stop) for half in reversed(halves)]
    return Progress(token=plan.token, waiting=waiting)


def _name(stage: str, query_id: str | None) -> str:
    return f"{_FOLDER}/{quote(stage, safe='')}.{query_id or 'batch'}"


def _count(top: list[Top], failure: Failure, rows: int) -> None:
    for place, one in enumerate(top):
        if one.fingerprint == failure.fingerprint:
            top[place] = replace(one, count=one.count + rows)
            return
    if len(top) < _TOP:
        top.append(
            Top(
                stage=failure.stage,
                fingerprint=failure.fingerprint,
                cause=failure.cause.value,
                exception_type=failure.exception_type,
                message=failure.message[:_SHOWN],
                coordinates="",
                count=rows,
            )
        )
