"""The delivery: letters to their sinks, and the proof that they are stored."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from datetime import datetime
from typing import TYPE_CHECKING

from sparkguard.core.failure import Failure
from sparkguard.core.letter import Letter, letter_id
from sparkguard.core.replay import replays
from sparkguard.core.version import VERSION
from sparkguard.errors import SinkError
from sparkguard.executor.task import Task
from sparkguard.sinks.base import Sink, SinkTask, Writer

if TYPE_CHECKING:
    from sparkguard.executor.child import Note


class Delivery:
    """The letters of one task; a sink is opened at the first letter it gets.

    Attributes:
        seen: ids that earlier letters had, so that an equal one gets the next number.
        note: of what a process works on that may die of it; a sink is no record's fault.
    """

    def __init__(
        self, app: str, sinks: Mapping[str, Sink], task: Task, seen: Iterable[str] = ()
    ) -> None:
        self._app = app
        self._sinks = sinks
        self._task = task
        self._writers: dict[str, Writer] = {}
        self.seen: Counter[str] = Counter(seen)
        self.note: Note | None = None

    def letter(self, failure: Failure, due: datetime | None = None) -> Letter:
        """The letter for a failure, with the id that makes it once."""
        identity = letter_id(failure)
        if failure.record.offset is None or failure.payload == "row":
            nth = self.seen[identity]
            self.seen[identity] += 1
            identity = letter_id(failure, nth) if nth else identity
        sent = replays(failure.record)
        return Letter(id=identity, failure=failure, replays=sent, version=VERSION, due=due)

    def write(self, name: str, failure: Failure, due: datetime | None = None) -> None:
        """Hand a letter to the sink of that name.

        Args:
            due: when the record is to come again, in a retry topic.

        Raises:
            SinkError: the sink is unknown, refuses the letter or cannot take it.
        """
        sink = self._sinks.get(name)
        if sink is None:
            known = ", ".join(repr(known) for known in sorted(self._sinks))
            msg = f"no such sink in the settings; known: {known}."
            raise SinkError(msg, sink=name, retriable=False)
        letter = self.letter(failure, due)
        refusal = sink.refuses(letter)
        if refusal:
            raise SinkError(refusal, sink=name, retriable=False)
        with nullcontext() if self.note is None else self.note.aside():
            writer = self._writers.get(name)
            if writer is None:
                writer = self._writers[name] = sink.open(self.sink_task(name))
            writer.write(letter)

    def flush(self) -> None:
        """Return when every letter is stored for good; the task may end then (P2)."""
        for writer in self._writers.values():
            writer.flush()

    def close(self) -> None:
        """Free the writers; letters not flushed are dropped."""
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()

    def sink_task(self, name: str) -> SinkTask:
        """Who writes to the sink of that name."""
        return SinkTask(
            app=self._app,
            name=name,
            batch_id=self._task.batch_id,
            stage_id=self._task.stage_id,
            partition=self._task.partition,
            attempt=self._task.attempt,
            task_attempt_id=self._task.task_attempt_id,
            sinks=self._sinks,
            cancelled=self._task.cancelled,
        )
