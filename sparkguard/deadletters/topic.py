"""Topic: the letters of a dead-letter topic, read once and put down as Parquet.

The scan is bounded: it ends where each partition ended when it began, so it ends on a topic that is
being written to. It joins no consumer group and commits nothing.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyarrow import parquet as pq

from sparkguard.core.instant import milliseconds
from sparkguard.core.letter import Letter
from sparkguard.core.letter_row import LETTER_SCHEMA, letter_table
from sparkguard.core.record import Record
from sparkguard.core.secret import scrub
from sparkguard.deadletters.files import Skipped
from sparkguard.dialects.base import Dialect
from sparkguard.errors import LettersError
from sparkguard.sinks._kafka_producer import CHECK_SECONDS, listening, topics_at
from sparkguard.sinks.kafka import KafkaSink

SPOOL_SCHEMA: Final = LETTER_SCHEMA.append(pa.field("place", pa.string()))
"""What is put down: a letter, and where it lies."""

STALL_SECONDS: Final = 30.0
"""A scan that gets nothing for so long is given up."""

_AT_ONCE: Final = 1_000
_BUFFER_BYTES: Final = 8 << 20
_READING: Final[Mapping[str, Any]] = {
    # No member of it: partitions are assigned, nothing is committed.
    "group.id": "sparkguard-dlq",
    "enable.auto.commit": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "earliest",
    # The default makes a fast reader wait a second whenever its queue was full.
    "fetch.queue.backoff.ms": 10,
    "queued.max.messages.kbytes": 16_384,
    # What goes wrong is said once, by whoever gives up.
    "log_level": 0,
}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FRAME = re.compile(r"^[ \t]*at ([\w.$/<>@]+)\(", re.MULTILINE)
"""A line of a Java stack trace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What of a topic is read.

    Attributes:
        since: messages of that time or later; that of a letter's message is the failure's.
        partitions: only these; empty means all.
        first, last: offsets, both included, in each partition.
    """

    since: datetime | None = None
    partitions: frozenset[int] = frozenset()
    first: int | None = None
    last: int | None = None


def spool(
    sink: KafkaSink, bounds: Bounds, dialects: Sequence[Dialect], file: Path
) -> tuple[Skipped, ...]:
    """Write the topic's letters to a Parquet file; at most a few megabytes are in memory.

    Returns:
        The messages that are no letters in any dialect, as one number.

    Raises:
        LettersError: the broker does not answer, or there is no such topic or partition.
    """
    with closing(_Spool(file, dialects)) as into:
        scan(sink, bounds, into.add)
        into.spill()
    return into.skipped(sink.topic)


def scan(sink: KafkaSink, bounds: Bounds, take: Callable[[Any], None]) -> None:
    """Hand over every message within the bounds, in the order of its partition.

    Raises:
        LettersError: the broker does not answer, or there is no such topic or partition.
    """
    from confluent_kafka import Consumer, KafkaException

    troubles: list[str] = []
    given = {key: value for key, value in sink.config.items() if value is not None}
    config = {**_READING, **given, "bootstrap.servers": sink.bootstrap_servers}
    try:
        with closing(Consumer(listening(config, troubles))) as consumer:
            ranges = _ranges(consumer, sink, bounds, troubles)
            _Scan(consumer, sink, ranges, troubles).run(take)
    except KafkaException as error:
        told = scrub(f"{error.args[0].str()}.", config)
        raise LettersError(f"The topic {sink.topic!r} cannot be read: {told}") from None


def _ranges(
    consumer: Any, sink: KafkaSink, bounds: Bounds, troubles: list[str]
) -> dict[int, tuple[int, int]]:
    """For each partition the first offset to read, and the one behind the last."""
    from confluent_kafka import TopicPartition

    servers = sink.bootstrap_servers
    try:
        topics = topics_at(sink.client, consumer, troubles)
    except ConnectionError as error:
        raise LettersError(f"{str(error)[0].upper()}{str(error)[1:]}") from None
    if sink.topic not in topics:
        near = ", ".join(sorted(name for name in topics if not name.startswith("__"))[:20])
        problem = f"There is no topic {sink.topic!r} at {servers}. Topics: {near or 'none'}."
        raise LettersError(problem)
    there = sorted(topics[sink.topic].partitions)
    if missing := sorted(bounds.partitions - {*there}):
        raise LettersError(f"The topic {sink.topic!r} has no partition {missing[0]}.")
    wanted = [at for at in there if not bounds.partitions or at in bounds.partitions]
    starts = dict.fromkeys(wanted, 0)
    if bounds.since is not None:
        # Below zero Kafka takes a time for one of its own words.
        since = max(milliseconds(bounds.since), 0)
        asked = [TopicPartition(sink.topic, at, since) for at in wanted]
        for at in consumer.offsets_for_times(asked, timeout=CHECK_SECONDS):
            # Behind the last message Kafka says -1.
            starts[at.partition] = at.offset if at.offset >= 0 else 2**62
    found = {}
    for at in wanted:
        low, high = consumer.get_watermark_offsets(
            TopicPartition(sink.topic, at), timeout=CHECK_SECONDS
        )
        first = max(low, starts[at], bounds.first or 0)
        found[at] = first, high if bounds.last is None else min(high, bounds.last + 1)
    return {at: (first, end) for at, (first, end) in found.items() if first < end}


@dataclass(slots=True)
class _Scan:
    """One way through the partitions, each up to its end."""

    consumer: Any
    sink: KafkaSink
    ranges: dict[int, tuple[int, int]]
    troubles: list[str]

    def run(self, take: Callable[[Any], None]) -> None:
        from confluent_kafka import TopicPartition

        topic = self.sink.topic
        self.consumer.assign(
            [TopicPartition(topic, at, first) for at, (first, _) in self.ranges.items()]
        )
        waiting = {*self.ranges}
        heard = time.monotonic()
        while waiting:
            batch = self.consumer.consume(_AT_ONCE, timeout=0.2)
            for message in batch:
                if message.partition() in waiting and self._ends(message, take):
                    waiting.discard(message.partition())
                    self.consumer.incremental_unassign([TopicPartition(topic, message.partition())])
            if batch:
                heard = time.monotonic()
            elif time.monotonic() > heard + STALL_SECONDS:
                reasons = "; ".join(self.troubles[-2:]) or "no answer"
                told = scrub(f"{reasons}.", self.sink.config)
                raise LettersError(f"Reading the topic {topic!r} stands still: {told}")

    def _ends(self, message: Any, take: Callable[[Any], None]) -> bool:
        """Take a message; whether it was the last one, or stands behind it."""
        from confluent_kafka import KafkaError, KafkaException

        end = self.ranges[message.partition()][1]
        if (error := message.error()) is not None:
            # Also where what is left are only the marks of transactions.
            if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - its public name
                return True
            raise KafkaException(error)
        if message.offset() < end:
            take(message)
        return bool(message.offset() >= end - 1)


@dataclass(slots=True)
class _Spool:
    """Letters on their way from messages to a Parquet file."""

    file: Path
    dialects: Sequence[Dialect]
    letters: list[Letter] = field(default_factory=list)
    places: list[str] = field(default_factory=list)
    bytes: int = 0
    others: int = 0
    parquet: Any = None

    def __post_init__(self) -> None:
        self.parquet = pq.ParquetWriter(self.file, SPOOL_SCHEMA, compression="zstd")

    def add(self, message: Any) -> None:
        record = _record(message)
        letter = read_letter(record, self.dialects)
        if letter is None:
            self.others += 1
            return
        self.letters.append(letter)
        self.places.append(record.coordinates)
        self.bytes += len(message) + sum(len(value or b"") for _, value in record.headers)
        if self.bytes >= _BUFFER_BYTES or len(self.letters) >= 10 * _AT_ONCE:
            self.spill()

    def spill(self) -> None:
        if self.letters:
            table = letter_table(self.letters)
            self.parquet.write_table(
                table.append_column(SPOOL_SCHEMA.field("place"), pa.array(self.places))
            )
        self.letters, self.places, self.bytes = [], [], 0

    def close(self) -> None:
        self.parquet.close()

    def skipped(self, topic: str) -> tuple[Skipped, ...]:
        why = "these messages are letters of no dialect that is known here"
        return (Skipped(f"topic {topic}", why, self.others),) if self.others else ()


def _record(message: Any) -> Record:
    kind, since = message.timestamp()
    when = None
    with suppress(OverflowError):  # a producer's own time may be in another unit
        when = _EPOCH + timedelta(milliseconds=since) if kind else None
    return Record(
        key=message.key(),
        value=message.value(),
        headers=tuple(message.headers() or ()),
        timestamp=when,
        topic=message.topic(),
        partition=message.partition(),
        offset=message.offset(),
    )


def read_letter(message: Record, dialects: Sequence[Dialect]) -> Letter | None:
    """The letter in a message, in whichever dialect; None where it is none.

    A letter that was sent back and failed elsewhere has the headers of both times: the dialect
    whose header stands last is asked first. A letter without a fingerprint gets one.
    """
    letter = None
    for dialect in _by_last_header(message, dialects):
        letter = dialect.read(message)
        if letter is not None:
            break
    if letter is None or letter.failure.fingerprint:
        return letter
    failure = letter.failure
    frame = _FRAME.search(failure.trace)
    place = "\1".join((failure.exception_type, failure.stage, frame[1] if frame else ""))
    digest = hashlib.blake2b(place.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    return replace(letter, failure=replace(failure, fingerprint=digest))


def _by_last_header(message: Record, dialects: Sequence[Dialect]) -> Sequence[Dialect]:
    # A plugin's dialect need not say how its headers begin.
    prefixes = {one: getattr(one, "prefix", None) for one in dialects}
    for name, _ in reversed(message.headers):
        for dialect, prefix in prefixes.items():
            if prefix and name.startswith(prefix):
                # What it cannot read, a newer version's, is no letter of the times before.
                return [dialect, *(one for one in dialects if not prefixes[one])]
    return dialects
