"""The producer behind the kafka sink: one a process, and a writer for each task."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from enum import IntEnum
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from sparkguard.core.instant import milliseconds
from sparkguard.core.letter import Letter
from sparkguard.core.secret import scrub
from sparkguard.errors import SinkError
from sparkguard.sinks.base import SinkTask, Writer

if TYPE_CHECKING:
    from sparkguard.sinks.kafka import KafkaSink

LOGGER: Final = logging.getLogger("sparkguard.sinks.kafka")
"""Gets what librdkafka logs; unconfigured, it goes to stderr."""

_SLICE_SECONDS: Final = 0.1
_LISTEN_SECONDS: Final = 0.01
_GRACE_SECONDS: Final = 10.0
_POINTER_KEY_BYTES: Final = 1024


class Form(IntEnum):
    """How much of a letter is sent; each is tried when the one before was too large."""

    BATCHED = 0
    ALONE = 1
    """librdkafka fails a whole batch for one message, so only what fails alone is too large."""
    NO_TRACE = 2
    NO_MESSAGE = 3
    POINTER = 4


class Client:
    """A producer and what its connections last complained about.

    Raises:
        SinkError: librdkafka refuses the settings.
    """

    def __init__(self, config: Mapping[str, Any], name: str) -> None:
        from confluent_kafka import KafkaException, Producer

        self.refusal: type[Exception] = KafkaException
        self.dead = False
        self.troubles: list[str] = []
        try:
            self.producer: Any = Producer(listening(config, self.troubles, self._fatal))
        except KafkaException as error:
            problem = scrub(f"{error.args[0].str()}.", config)
            raise SinkError(problem, sink=name, retriable=False) from None

    def _fatal(self) -> None:
        self.dead = True


_CLIENTS: dict[tuple[int, str], Client] = {}
_CLIENTS_LOCK = threading.Lock()


def listening(
    config: Mapping[str, Any],
    troubles: list[str],
    on_fatal: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """A client's settings with its errors collected in `troubles` and its log in `LOGGER`."""

    def listen(error: Any) -> None:
        troubles.append(error.str())
        del troubles[:-5]
        if error.fatal():
            on_fatal()

    return {**config, "error_cb": listen, "logger": LOGGER}


def client(config: Mapping[str, Any], name: str) -> Client:
    """This process's producer for these settings, made on first use.

    A forked child gets its own: librdkafka's threads do not survive a fork. The parent's entry
    stays in the child's table, because freeing it there would wait for those threads.
    """
    key = os.getpid(), json.dumps(config, sort_keys=True, default=str)
    with _CLIENTS_LOCK:
        found = _CLIENTS.get(key)
        if found is None or found.dead:
            found = _CLIENTS[key] = Client(config, name)
        return found


class KafkaWriter:
    """Sends letters at once, and waits for their acknowledgements on `flush`."""

    def __init__(self, sink: KafkaSink, task: SinkTask) -> None:
        self._sink = sink
        self._task = task
        self._config = sink.client
        self._dialect: Any = sink.dialect
        self._clients: dict[bool, Client] = {False: client(self._config, task.name)}
        self._patience = _patience(self._config)
        self._listen_at = 0.0
        self._look_at = 0.0
        self._numbers = count()
        # Reports may come in the thread of another task: no operation here needs two steps.
        self._pending: dict[bool, set[int]] = {False: set(), True: set()}
        self._too_large: deque[tuple[Letter, Form]] = deque()
        self._failed: Any = None
        self._heard = 0.0
        self._overflow: Writer | None = None
        self._pointers: list[Letter] = []

    def write(self, letter: Letter) -> None:
        """Hand a letter to the producer; waits only while its queue is full."""
        self._send(letter, Form.BATCHED)
        if self._too_large or self._heard >= self._listen_at:
            self._listen_at = self._heard + _LISTEN_SECONDS
            self._poll(0)
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
        to = self._client(alone=alone)
        number = next(self._numbers)
        self._heard = time.monotonic()
        self._pending[alone].add(number)
        try:
            short = _shortened(letter, form) if alone else letter
            self._produce(to, short, partial(self._reported, letter, form, number))
        except to.refusal as error:
            # Refused before it was queued: so it was judged alone.
            self._judge(letter, max(form, Form.ALONE), error.args[0])
            self._pending[alone].discard(number)
        except BaseException:
            self._pending[alone].discard(number)
            raise

    def _produce(self, to: Client, letter: Letter, report: Callable[[Any, Any], None]) -> None:
        failure = letter.failure
        record = failure.record
        headers = self._dialect.headers(letter)
        at = _timestamp(failure.last_failed_at)
        while True:
            try:
                to.producer.produce(
                    self._sink.topic,
                    record.value,
                    record.key,
                    headers=headers,
                    timestamp=at,
                    on_delivery=report,
                )
            except BufferError:
                self._poll(_SLICE_SECONDS)
                self._raise_if_hopeless()
            else:
                return

    def _client(self, *, alone: bool) -> Client:
        if alone not in self._clients:
            settings = {**self._config, "batch.num.messages": 1, "linger.ms": 0}
            self._clients[alone] = client(settings, self._task.name)
        return self._clients[alone]

    def _reported(self, letter: Letter, form: Form, number: int, error: Any, _message: Any) -> None:
        alone = form is not Form.BATCHED
        self._heard = time.monotonic()
        if error is not None:
            self._judge(letter, form, error)
        elif troubles := self._clients[alone].troubles:
            troubles.clear()
        # Last: whoever finds nothing pending must find what was judged.
        self._pending[alone].discard(number)

    def _judge(self, letter: Letter, form: Form, error: Any) -> None:
        if _is_too_large(error):
            self._too_large.append((letter, form))
        elif self._failed is None:
            self._failed = error

    # --- waiting ----------------------------------------------------------------------------

    def _wait(self) -> None:
        self._go_on()
        while self._waits() or self._too_large:
            self._poll(_SLICE_SECONDS)
            self._go_on()
        # The last report may have come in another thread, after the last look.
        self._raise_if_failed()

    def _waits(self) -> bool:
        return any(self._pending.values())

    def _go_on(self) -> None:
        self._raise_if_hopeless()
        while self._too_large:
            self._shrink(*self._too_large.popleft())

    def _poll(self, seconds: float) -> None:
        for alone, one in self._clients.items():
            one.producer.poll(seconds if self._pending[alone] else 0)

    def _raise_if_failed(self) -> None:
        if self._failed is not None:
            self._raise(self._failed.str(), retriable=not _is_refusal(self._failed))

    def _raise_if_hopeless(self) -> None:
        self._raise_if_failed()
        if self._cancelled():
            self._raise("the task is being stopped")
        if self._waits() and time.monotonic() > self._heard + self._patience:
            self._raise("no answer within the delivery timeout")

    def _cancelled(self) -> bool:
        """Look at most ten times a second: a look at the stop marker costs as much as a letter."""
        now = time.monotonic()
        if self._task.cancelled is None or now < self._look_at:
            return False
        self._look_at = now + _SLICE_SECONDS
        return self._task.cancelled()

    def _raise(self, reason: str, *, retriable: bool = True) -> None:
        troubles = [text for one in self._clients.values() for text in one.troubles[-2:]]
        told = f" ({'; '.join(dict.fromkeys(troubles))})" if troubles else ""
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


def _patience(config: Mapping[str, Any]) -> float:
    timeout = int(config.get("message.timeout.ms", config["delivery.timeout.ms"]))
    return timeout / 1000 + _GRACE_SECONDS if timeout else float("inf")


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


def _is_too_large(error: Any) -> bool:
    from confluent_kafka import KafkaError

    return error.code() in {KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE}


def _is_refusal(error: Any) -> bool:
    """Whether the broker would refuse the same message again."""
    from confluent_kafka import KafkaError

    return error.code() in {
        KafkaError.INVALID_RECORD,
        KafkaError.INVALID_TIMESTAMP,
        KafkaError.POLICY_VIOLATION,
        KafkaError.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    }
