"""Sending back: letters of a retry topic that are due, in a worker, become records again.

What is sent has its acknowledgement before the task ends, so that nothing is forgotten unsent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa

from sparkguard.core.decide import not_stored
from sparkguard.core.failure import Category, Cause, Failure
from sparkguard.core.fingerprint import describe
from sparkguard.core.instant import milliseconds
from sparkguard.core.letter import Letter, letter_id
from sparkguard.core.record import Record
from sparkguard.core.replay import sent_back
from sparkguard.core.version import VERSION
from sparkguard.dialects.native import NativeDialect
from sparkguard.errors import LettersError, SinkError
from sparkguard.executor.delivery import Delivery
from sparkguard.executor.plan import Layout
from sparkguard.executor.source import Source
from sparkguard.executor.task import Task
from sparkguard.retry_service.waiting import messages_in
from sparkguard.sinks._kafka_producer import Message, is_refusal
from sparkguard.sinks._kafka_writer import Form, KafkaWriter
from sparkguard.sinks.base import Sink, SinkTask, Writer
from sparkguard.sinks.kafka import KafkaSink

NAME: Final = "retry-service"
"""The service in letters, log lines and the state; what it sends has ids that begin ``retry/``."""

SENT: Final = "sent long, aside long"
"""What `run` gives, as Spark writes types: one row a task."""

_LAYOUT: Final = Layout(key=0, value=1, headers=2, topic=3, partition=4, offset=5, timestamp=6)
_DIALECT: Final = NativeDialect()


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Where records go.

    Attributes:
        redrive: the topic that they are sent back to.
        aside: name of the sink for what cannot be sent.
        stop_marker: path of the file that asks running tasks to stop waiting.
    """

    app: str
    redrive: KafkaSink
    sinks: Mapping[str, Sink]
    aside: str
    stop_marker: str


def run(plan: Plan, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Send the records of every bundle, wait for each acknowledgement, and say how many.

    Raises:
        StageFailedError: not all of it was acknowledged; asks for a restart where that may help.
    """
    task = Task.current(plan.stop_marker)
    returning = Returning(plan, Delivery(plan.app, plan.sinks, task).sink_task(plan.aside))
    try:
        for batch in batches:
            for bundle in batch.column("bundle"):
                source = Source(messages_in(bundle.as_buffer()), _LAYOUT)
                for message in source.records(range(len(source.batch))):
                    returning.take(message)
        returning.flush()
    except SinkError as error:
        raise not_stored(plan.app, NAME, error) from error
    finally:
        returning.close()
    yield pa.RecordBatch.from_pydict({"sent": [returning.sent], "aside": [returning.aside]})


class Returning(KafkaWriter):
    """Sends the records of letters back; what cannot be sent is stored aside, as the letter it is.

    Attributes:
        sent, aside: how many went which way.
    """

    def __init__(self, plan: Plan, task: SinkTask) -> None:
        super().__init__(plan.redrive, replace(task, name="redrive"))
        self._plan = plan
        self._aside_task = task
        self._writer: Writer | None = None
        self.sent = self.aside = 0

    def take(self, message: Record) -> None:
        """Send back the record of the letter in a message."""
        letter = _DIALECT.read(message)
        # Without a due time nobody counts how often it comes: it would come for ever.
        if letter is None or letter.due is None or letter.overflow is not None:
            self._put_aside(letter or _unreadable(self._plan.app, message))
        else:
            self.sent += 1
            self.write(letter)

    def flush(self) -> None:
        """Return when everything is acknowledged, what was put aside too."""
        super().flush()
        if self._writer is not None:
            self._writer.flush()

    def close(self) -> None:
        """Forget what was not flushed."""
        super().close()
        if self._writer is not None:
            self._writer.close()

    def _put_aside(self, letter: Letter) -> None:
        self.aside += 1
        if self._writer is None:
            self._writer = self._plan.sinks[self._plan.aside].open(self._aside_task)
        self._writer.write(letter)

    def _send(self, letter: Letter, form: Form) -> None:
        record, alone = sent_back(letter, "retry", retry=True), form is not Form.BATCHED
        since = 0 if record.timestamp is None else max(milliseconds(record.timestamp), 0)
        message = Message(
            self._sink.topic, record.value, record.key, list(record.headers), timestamp=since
        )
        self._courier.send((letter, form), message, alone=alone)

    def _judge(self, token: tuple[Letter, Form], error: Any, /, *, alone: bool) -> None:
        letter, form = token
        if is_refusal(error):
            self._too_large.append((letter, max(form, Form.ALONE) if alone else form))
        else:
            super()._judge(token, error, alone=alone)

    def _shrink(self, letter: Letter, form: Form) -> None:
        if form is Form.BATCHED:
            self._send(letter, Form.ALONE)
        else:
            # The topic does not take this record, whoever sends it.
            self.sent -= 1
            self._put_aside(letter)


def _unreadable(app: str, message: Record) -> Letter:
    """A letter about a message that is none."""
    sentence = f"The message {message.coordinates} is no letter that waits to be sent back."
    described = describe(LettersError(sentence))
    failure = Failure(
        stage=NAME,
        category=Category.DESERIALIZATION,
        cause=Cause.POISON,
        exception_types=described.types,
        message=described.message,
        fingerprint=described.fingerprint,
        first_failed_at=message.timestamp,
        last_failed_at=message.timestamp,
        record=message,
        app=app,
        flow=NAME,
    )
    return Letter(id=letter_id(failure), failure=failure, version=VERSION)
