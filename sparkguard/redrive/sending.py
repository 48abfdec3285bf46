"""Sending: letters as the records that they were, each acknowledged or known to be refused."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final, NamedTuple

import pyarrow as pa

from sparkguard.core.replay import Place, marked
from sparkguard.core.secret import scrub
from sparkguard.deadletters.journal import Entry
from sparkguard.errors import LettersError, ProduceError
from sparkguard.redrive.fates import Fate
from sparkguard.sinks._kafka_producer import (
    OF_THE_BATCH,
    OF_THE_MESSAGE,
    SLICE_SECONDS,
    Courier,
    Message,
    admin_for,
    is_too_large,
    topics_at,
)
from sparkguard.sinks.kafka import KafkaSink

_OWN: Final[Mapping[str, Any]] = {
    "client.id": "sparkguard-redrive",
    # Somebody waits, and can go on later: no reason to try for two minutes.
    "delivery.timeout.ms": 30_000,
    # What goes wrong is said once, by whoever gives up.
    "log_level": 0,
}
_POLL_EVERY: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where letters are sent.

    Attributes:
        servers: ``host:port``, several by comma.
        topic: None is each letter's origin, where other consumer groups get it again.
        config: further settings of librdkafka.
    """

    servers: str
    topic: str | None = None
    config: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def client(self) -> dict[str, Any]:
        """The settings of librdkafka in force.

        Raises:
            InvalidSettingError: one of them is not for the user to set, or the name is none.
        """
        given = {**_OWN, **self.config}
        if "message.timeout.ms" in self.config:
            # Another name of the same thing.
            del given["delivery.timeout.ms"]
        topic = self.topic or "origin"
        return KafkaSink(bootstrap_servers=self.servers, topic=topic, config=given).client

    def partitions(self, *topics: str) -> Mapping[str, int]:
        """How many partitions each topic there has.

        Raises:
            LettersError: no broker answers, or one of `topics` is not there.
        """
        client = self.client
        try:
            found = topics_at(client, *admin_for(client))
        except (ConnectionError, ValueError) as error:
            raise LettersError(f"{str(error)[0].upper()}{str(error)[1:]}") from None
        counts = {name: len(one.partitions) for name, one in found.items()}
        for topic in topics:
            self.place(topic, counts)
        return counts

    def place(self, topic: str, partitions: Mapping[str, int]) -> int:
        """How many partitions the topic has.

        Raises:
            LettersError: it is not there.
        """
        if topic not in partitions:
            raise LettersError(
                f"There is no topic {topic!r} at {self.servers} to send letters to. Make it, or "
                "name another one."
            )
        return partitions[topic]


class Parcel(NamedTuple):
    """One letter on its way; without a message it is for the parking lot."""

    row: int
    id: str
    message: Message | None


def parcels(
    batch: pa.RecordBatch,
    first: int,
    run: str,
    to: Callable[[bytes | None, Place], tuple[str, int]],
) -> Iterator[Parcel]:
    """The letters of a batch of rows as what is sent; by column, a third of what letters cost.

    Args:
        first: number of the first row.
        to: topic and partition for a record, by its key and its origin.
    """
    headers = batch["headers"]
    found_headers = headers.flatten()
    names, values = (found_headers.field(at).to_pylist() for at in (0, 1))
    offsets = headers.offsets.to_pylist()
    ends = [(start - offsets[0], end - offsets[0]) for start, end in pairwise(offsets)]
    since = batch["timestamp"].cast(pa.timestamp("us")).cast(pa.int64()).to_pylist()
    columns = ("id", "key", "value", "topic", "partition", "offset", "replays", "fate")
    rows = zip(*(batch[name].to_pylist() for name in columns), since, ends, strict=True)
    for row, found in enumerate(rows, first):
        letter, key, value, topic, partition, offset, replays, fate, at, (start, end) = found
        if fate != Fate.SEND:
            yield Parcel(row, letter, None)
            continue
        own = list(zip(names[start:end], values[start:end], strict=True))
        here = topic, partition, offset
        own, origin = marked(own, here, f"{run}/{letter}", replays or 0)
        name, place = to(key, origin)
        # Kafka takes no time before 1970, and librdkafka takes 0 for now.
        when = 0 if at is None else max(at // 1000, 0)
        yield Parcel(row, letter, Message(name, value, key, own, place, when))


def waves(parcels: Sequence[Parcel]) -> list[list[Parcel]]:
    """In each wave a key once at most, and its letters in their order from wave to wave."""
    found: list[list[Parcel]] = []
    seen: Counter[bytes] = Counter()
    for one in parcels:
        key = None if one.message is None else one.message.key
        at = 0 if key is None else seen[key]
        if key is not None:
            seen[key] += 1
        if at == len(found):
            found.append([])
        found[at].append(one)
    return found


class Pace:
    """So many a second at most, from the first one on."""

    def __init__(self, rate: float | None) -> None:
        self._rate = rate
        self._count = 0
        self._began = 0.0

    def wait(self, meanwhile: Callable[[float], None]) -> None:
        """Return when the next one may go; `meanwhile` waits for the seconds it is given."""
        if self._rate is None:
            return
        self._began = self._began or time.monotonic()
        due = self._began + self._count / self._rate
        self._count += 1
        while (left := due - time.monotonic()) > 0:
            meanwhile(min(left, SLICE_SECONDS))


class _StoppedError(Exception):
    """No further parcel is to be sent."""


class Sender:
    """Sends parcels and hears of each.

    Attributes:
        entries: what became of those that were heard of since `begin`.

    Raises:
        SinkError: librdkafka refuses the settings.
    """

    def __init__(self, target: Target, pace: Pace, *, keep_order: bool) -> None:
        self._config = target.client
        if keep_order:
            # Each letter waits for the one before.
            self._config["linger.ms"] = 0
        self._pace = pace
        self._keep_order = keep_order
        self.entries: list[Entry] = []
        self._again: deque[Parcel] = deque()
        self._failed: Any = None
        self._stop: Callable[[], bool] = lambda: False
        self._courier: Courier[Parcel] = Courier(
            self._config, "redrive", self._judge, self._raise_if_hopeless, arrived=self._arrived
        )

    def send(
        self, parcels: Iterable[Parcel], stop: Callable[[], bool] = lambda: False
    ) -> list[Entry]:
        """Return what became of each, once it is known; those without a message are passed over.

        Args:
            stop: once it says so, no further one is sent.

        Raises:
            ProduceError: the brokers cannot be reached any more; `entries` has what is known.
        """
        self.entries = []
        self._stop = stop
        try:
            # What is not held back is on its way while the next one is made.
            for wave in waves([*parcels]) if self._keep_order else [parcels]:
                self._send(wave)
        except BaseException:
            # What is still under way must not arrive when nobody notes it any more.
            self._courier.drop(in_flight=True)
            self._courier.poll(0)
            raise
        return self.entries

    def _send(self, wave: Iterable[Parcel]) -> None:
        with suppress(_StoppedError):
            self._give(wave)
        while self._courier.waits or self._again:
            self._courier.poll(SLICE_SECONDS)
            self._raise_if_hopeless()
            while self._again:
                parcel = self._again.popleft()
                if parcel.message is not None:
                    self._courier.send(parcel, parcel.message, alone=True)
        self._raise_if_hopeless()

    def _give(self, wave: Iterable[Parcel]) -> None:
        for at, parcel in enumerate(wave):
            if parcel.message is not None:
                self._go_on(0 if at % _POLL_EVERY == 0 else None)
                self._pace.wait(self._go_on)
                self._courier.send(parcel, parcel.message)

    def _go_on(self, seconds: float | None) -> None:
        """Hear reports for so long, and see that another one may be sent."""
        if self._stop():
            raise _StoppedError
        if seconds is not None:
            self._courier.poll(seconds)
            self._raise_if_hopeless()

    def _arrived(self, parcel: Parcel, message: Any) -> None:
        place = message.topic(), message.partition(), message.offset()
        self.entries.append(Entry(parcel.id, parcel.row, "sent", None, *place))

    def _judge(self, parcel: Parcel, error: Any, /, *, alone: bool) -> None:
        name = error.name()
        if name in OF_THE_BATCH and not alone:
            self._again.append(parcel)
        elif name in OF_THE_MESSAGE:
            why = "too large for the topic" if is_too_large(error) else error.str()
            self.entries.append(Entry(parcel.id, parcel.row, "left", why))
        elif self._failed is None:
            self._failed = error

    def _raise_if_hopeless(self) -> None:
        if self._failed is not None:
            code, reason = self._failed.name(), self._failed.str()
        elif not self._courier.patient:
            code, reason = "_TIMED_OUT", "no answer within the delivery timeout"
        else:
            return
        told = f"Kafka did not take the letters: {reason}{self._courier.told()}."
        raise ProduceError(scrub(told, self._config), code=code, retriable=True)
