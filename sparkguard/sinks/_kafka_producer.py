"""Producers that lose nothing quietly: one a process and settings, and a courier for each task."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from itertools import count
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from sparkguard.core.secret import scrub
from sparkguard.errors import SinkError

LOGGER: Final = logging.getLogger("sparkguard.sinks.kafka")
"""Gets what librdkafka logs; unconfigured, it goes to stderr."""

CHECK_SECONDS: Final = 5.0
"""A broker that does not answer for so long when a query is built counts as unreachable."""

SLICE_SECONDS: Final = 0.1
"""The longest wait for a report without a look whether to wait at all."""

DEFAULTS: Final[Mapping[str, Any]] = {
    "client.id": "sparkguard",
    "delivery.timeout.ms": 120_000,
    # Java's clients partition so; the default of librdkafka sends a key elsewhere.
    "partitioner": "murmur2_random",
    "enable.idempotence": True,
    "linger.ms": 5,
    # The broker decides what is too large; its default for a whole request is 104,857,600.
    "message.max.bytes": 100_000_000,
    "queue.buffering.max.messages": 10_000,
    "queue.buffering.max.kbytes": 131_072,
}
"""What settings may change. ``acks=all`` they may not."""

OF_THE_BATCH: Final = frozenset(
    {
        "MSG_SIZE_TOO_LARGE",
        "RECORD_LIST_TOO_LARGE",
        "INVALID_MSG",
        "INVALID_RECORD",
        "INVALID_TIMESTAMP",
        "POLICY_VIOLATION",
        "UNSUPPORTED_FOR_MESSAGE_FORMAT",
        "_INVALID_DIFFERENT_RECORD",
    }
)
"""What a batch is refused for: it says nothing about each of its messages."""

OF_THE_MESSAGE: Final = OF_THE_BATCH | {"_UNKNOWN_PARTITION", "TOPIC_EXCEPTION"}
"""What a message is refused for, and would be again."""

_GRACE_SECONDS: Final = 10.0

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)


class Judge(Protocol[T_contra]):
    """Is told of a message that was refused."""

    def __call__(self, token: T_contra, error: Any, /, *, alone: bool) -> None:
        """Take note of the token, the KafkaError, and whether it was sent alone."""
        ...


class Message(NamedTuple):
    """What is sent; a partition of -1 is chosen by key, a timestamp of 0 is now."""

    topic: str
    value: bytes | None = None
    key: bytes | None = None
    headers: Any = None
    partition: int = -1
    timestamp: int = 0


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


class Carrier(ABC):
    """What hands one task's messages to this process's producers.

    Args:
        name: of the sink or stage, for errors.
        meanwhile: called again and again while the producer's queue is full; may raise.

    Raises:
        SinkError: librdkafka refuses the settings.
    """

    def __init__(self, config: Mapping[str, Any], name: str, meanwhile: Callable[[], None]) -> None:
        self.heard = 0.0
        self._config = config
        self._name = name
        self._meanwhile = meanwhile
        self._patience = _patience(config)
        self._clients: dict[bool, Client] = {False: client(config, name)}

    @property
    @abstractmethod
    def waits(self) -> bool:
        """Whether a message has no report yet."""

    @abstractmethod
    def poll(self, seconds: float) -> None:
        """Hear the reports that have come, or wait so long for the next one."""

    @property
    def patient(self) -> bool:
        """Whether it still makes sense to wait for reports."""
        return not self.waits or time.monotonic() <= self.heard + self._patience

    def drop(self, *, in_flight: bool = False) -> None:
        """Give up what waits in the queues; what is under way too, or it may still arrive."""
        for one in self._clients.values():
            one.producer.purge(in_queue=True, in_flight=in_flight, blocking=False)

    def told(self) -> str:
        """What the connections last complained about, as an addition to a sentence."""
        troubles = [text for one in self._clients.values() for text in one.troubles[-2:]]
        return f" ({'; '.join(dict.fromkeys(troubles))})" if troubles else ""

    def _produce(self, to: Client, message: Message, report: Callable[[Any, Any], Any]) -> None:
        while True:
            try:
                to.producer.produce(
                    message.topic,
                    message.value,
                    message.key,
                    message.partition,
                    headers=message.headers,
                    timestamp=message.timestamp,
                    on_delivery=report,
                )
            except BufferError:
                self.poll(SLICE_SECONDS)
                self._meanwhile()
            else:
                return

    def _client(self, *, alone: bool) -> Client:
        if alone not in self._clients:
            settings = {**self._config, "batch.num.messages": 1, "linger.ms": 0}
            self._clients[alone] = client(settings, self._name)
        return self._clients[alone]


class Courier(Carrier, Generic[T]):
    """Sends messages, each with a token, and hears of every one.

    Args:
        judge: told of every message that was refused: its token, the KafkaError, and whether it
            was sent alone. Called while polling, so it must neither raise nor send.
        arrived: told likewise of every message that was acknowledged: its token, and the message
            with the partition and the offset that it got.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        name: str,
        judge: Judge[T],
        meanwhile: Callable[[], None],
        *,
        arrived: Callable[[T, Any], None] | None = None,
    ) -> None:
        super().__init__(config, name, meanwhile)
        self._judge = judge
        self._arrived = arrived
        self._numbers = count()
        # Reports may come in the thread of another task: no operation here needs two steps.
        self._pending: dict[bool, dict[int, T]] = {False: {}, True: {}}

    def send(self, token: T, message: Message, *, alone: bool = False) -> None:
        """Hand a message to the producer; waits only while its queue is full.

        Args:
            alone: in no batch with others. librdkafka fails a whole batch for one message, so
                only what fails alone is itself at fault.
        """
        to = self._client(alone=alone)
        number = next(self._numbers)
        self.heard = time.monotonic()
        pending = self._pending[alone]
        pending[number] = token
        try:
            self._produce(to, message, partial(self._reported, token, number, alone=alone))
        except to.refusal as error:
            # Refused before it was queued: so it was judged alone.
            self._judge(token, error.args[0], alone=True)
            pending.pop(number, None)
        except BaseException:
            pending.pop(number, None)
            raise

    def poll(self, seconds: float) -> None:
        """As `Carrier.poll`."""
        for alone, one in self._clients.items():
            one.producer.poll(seconds if self._pending[alone] else 0)

    @property
    def waits(self) -> bool:
        """As `Carrier.waits`."""
        return any(self._pending.values())

    def _reported(self, token: T, number: int, error: Any, message: Any, *, alone: bool) -> None:
        self.heard = time.monotonic()
        if error is not None:
            self._judge(token, error, alone=alone)
        else:
            if self._arrived is not None:
                self._arrived(token, message)
            if troubles := self._clients[alone].troubles:
                troubles.clear()
        # Last: whoever finds nothing pending must find what was judged.
        self._pending[alone].pop(number, None)


def is_too_large(error: Any) -> bool:
    """Whether a KafkaError says that the message is too large."""
    from confluent_kafka import KafkaError

    return error.code() in {KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE}


def is_refusal(error: Any) -> bool:
    """Whether the broker would refuse the same message again."""
    from confluent_kafka import KafkaError

    return error.code() in {
        KafkaError.INVALID_RECORD,
        KafkaError.INVALID_TIMESTAMP,
        KafkaError.POLICY_VIOLATION,
        KafkaError.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    }


def topics_at(config: Mapping[str, Any], admin: Any, troubles: list[str]) -> Mapping[str, Any]:
    """The topics that there are, by name.

    Raises:
        ConnectionError: no broker answers; says why as far as it is known.
    """
    from confluent_kafka import KafkaException

    try:
        # Asking for one topic by name would make it where the broker is set so.
        found: Mapping[str, Any] = admin.list_topics(timeout=CHECK_SECONDS).topics
    except KafkaException as error:
        admin.poll(0)
        reasons = "; ".join(dict.fromkeys(troubles[-2:])) or error.args[0].str()
        servers = config["bootstrap.servers"]
        raise ConnectionError(
            scrub(f"no broker answers at {servers}: {reasons}.", config)
        ) from None
    return found


def admin_for(config: Mapping[str, Any]) -> tuple[Any, list[str]]:
    """A client that asks, and the list of what its connections complain about.

    Raises:
        ValueError: librdkafka refuses the settings.
    """
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    troubles: list[str] = []
    try:
        return AdminClient(listening(config, troubles)), troubles
    except KafkaException as error:
        raise ValueError(scrub(f"{error.args[0].str()}.", config)) from None


def _patience(config: Mapping[str, Any]) -> float:
    timeout = int(config.get("message.timeout.ms", config["delivery.timeout.ms"]))
    return timeout / 1000 + _GRACE_SECONDS if timeout else float("inf")
