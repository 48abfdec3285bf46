"""The writer behind the kafka sink: a task's letters, each as large as the topic takes it."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import replace
from datetime import datetime
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final

from sparkguard.core.instant import milliseconds
from sparkguard.core.letter import Letter
from sparkguard.core.secret import scrub
from sparkguard.errors import SinkError
from sparkguard.sinks._kafka_producer import (
    SLICE_SECONDS,
    Courier,
    Message,
    is_refusal,
    is_too_large,
)
from sparkguard.sinks.base import SinkTask, Writer

if TYPE_CHECKING:
    from sparkguard.sinks.kafka import KafkaSink

_LISTEN_SECONDS: Final = 0.01
_POINTER_KEY_BYTES: Final = 1024


class Form(IntEnum):
    """How much of a letter is sent; each is tried when the one before was too large."""

    BATCHED = 0
    ALONE = 1
    """librdkafka fails a whole batch for one message, so only what fails alone is too large."""
    NO_TRACE = 2
    NO_MESSAGE = 3
    POINTER = 4


class KafkaWriter:
    """Sends letters at once, and waits for their acknowledgements on `flush`."""

    def __init__(self, sink: KafkaSink, task: SinkTask) -> None:
        self._sink = sink
        self._task = task
        self._config = sink.client
        self._dialect: Any = sink.dialect
        self._courier: Courier[tuple[Letter, Form]] = Courier(
            self._config, task.name, self._judge, self._raise_if_hopeless
        )
        self._listen_at = 0.0
        self._look_at = 0.0
        self._too_large: deque[tuple[Letter, Form]] = deque()
        self._failed: Any = None
        self._overflow: Writer | None = None
        self._pointers: list[Letter] = []

    def write(self, letter: Letter) -> None:
        """Hand a letter to the producer; waits only while its queue is full."""
        self._send(letter, Form.BATCHED)
        if self._too_large or self._courier.heard >= self._listen_at:
            self._listen_at = self._courier.heard + _LISTEN_SECONDS
            self._courier.poll(0)
            self._go_on()

    def flush(self) -> None:
        """Return when every letter is acknowledged, whole or by its pointer.

        Raises:
            SinkError: one was not within ``delivery.timeout.ms``, or is too large for the topic.
        """
        self._wait()
        if self._overflow is not None:
            self._overflow.flush()
            for pointer in self._pointers:
                self._send(pointer, Form.POINTER)
            self._pointers.clear()
            self._wait()

    def close(self) -> None:
        """Forget what was not flushed; the producer stays for the process's next task."""
        self._too_large.clear()
        self._pointers.clear()
        if self._overflow is not None:
            self._overflow.close()
            self._overflow = None

    # --- sending ----------------------------------------------------------------------------

    def _send(self, letter: Letter, form: Form) -> None:
        alone = form is not Form.BATCHED
        short = _shortened(letter, form) if alone else letter
        record = short.failure.record
        message = Message(
            self._sink.topic,
            record.value,
            record.key,
            self._dialect.headers(short),
            timestamp=_timestamp(short.failure.last_failed_at),
        )
        self._courier.send((letter, form), message, alone=alone)

    def _judge(self, token: tuple[Letter, Form], error: Any, /, *, alone: bool) -> None:
        letter, form = token
        if is_too_large(error):
            # What was refused before it was queued was judged alone.
            self._too_large.append((letter, max(form, Form.ALONE) if alone else form))
        elif self._failed is None:
            self._failed = error

    # --- waiting ----------------------------------------------------------------------------

    def _wait(self) -> None:
        self._go_on()
        while self._courier.waits or self._too_large:
            self._courier.poll(SLICE_SECONDS)
            self._go_on()
        # The last report may have come in another thread, after the last look.
        self._raise_if_failed()

    def _go_on(self) -> None:
        self._raise_if_hopeless()
        while self._too_large:
            self._shrink(*self._too_large.popleft())

    def _raise_if_failed(self) -> None:
        if self._failed is not None:
            self._raise(self._failed.str(), retriable=not is_refusal(self._failed))

    def _raise_if_hopeless(self) -> None:
        self._raise_if_failed()
        if self._cancelled():
            self._raise("the task is being stopped")
        if not self._courier.patient:
            self._raise("no answer within the delivery timeout")

    def _cancelled(self) -> bool:
        """Look at most ten times a second: a look at the stop marker costs as much as a letter."""
        now = time.monotonic()
        if self._task.cancelled is None or now < self._look_at:
            return False
        self._look_at = now + SLICE_SECONDS
        return self._task.cancelled()

    def _raise(self, reason: str, *, retriable: bool = True) -> None:
        told = self._courier.told()
        problem = f"letters for topic {self._sink.topic!r} were not acknowledged: {reason}{told}."
        raise SinkError(scrub(problem, self._config), sink=self._task.name, retriable=retriable)

    # --- too large --------------------------------------------------------------------------

    def _shrink(self, letter: Letter, form: Form) -> None:
        if form is Form.BATCHED:
            self._send(letter, Form.ALONE)
        elif form < Form.NO_TRACE and letter.failure.trace:
            self._send(letter, Form.NO_TRACE)
        elif form < Form.NO_MESSAGE and letter.failure.message:
            self._send(letter, Form.NO_MESSAGE)
        elif form is Form.POINTER or self._sink.overflow is None:
            raise SinkError(self._too_large_sentence(letter), sink=self._task.name, retriable=False)
        else:
            self._overflow_writer(self._sink.overflow).write(letter)
            self._pointers.append(_pointer(letter, self._sink.overflow))

    def _overflow_writer(self, name: str) -> Writer:
        if self._overflow is None:
            self._overflow = self._task.sinks[name].open(replace(self._task, name=name))
        return self._overflow

    def _too_large_sentence(self, letter: Letter) -> str:
        record = letter.record
        if letter.overflow is not None:
            return f"even the pointer to letter {letter.id} is too large for the topic."
        headers = sum(len(name) + len(value or b"") for name, value in record.headers)
        return (
            f"letter {letter.id} of record {record.coordinates or '(no coordinates)'} is too large "
            f"for topic {self._sink.topic!r} even without trace and message: key "
            f"{len(record.key or b'')}, value {len(record.value or b'')}, headers {headers} bytes. "
            "Raise the topic's max.message.bytes, or name a file sink as 'overflow:'."
        )


def _shortened(letter: Letter, form: Form) -> Letter:
    if form < Form.NO_TRACE:
        return letter
    letter = letter.without("trace")
    return letter.without("message") if form >= Form.NO_MESSAGE else letter


def _timestamp(failed_at: datetime | None) -> int:
    """Kafka takes no time before 1970, and librdkafka takes 0 for now."""
    return 0 if failed_at is None else max(milliseconds(failed_at), 0)


def _pointer(letter: Letter, overflow: str) -> Letter:
    record = letter.record
    small = record.key is not None and len(record.key) <= _POINTER_KEY_BYTES
    bare = replace(record, key=record.key if small else None, value=None, headers=(), columns=None)
    failure = replace(letter.failure, record=bare, trace="", message="")
    return replace(letter, failure=failure, overflow=overflow)
