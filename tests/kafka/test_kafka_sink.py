"""The kafka sink and a real broker; ids and bytes are compared, never counts alone."""

import os
import struct
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pytest

from sparkguard.core.letter import Letter
from sparkguard.core.letter_row import letter_from_row
from sparkguard.core.record import Record
from sparkguard.dialects.native import NativeDialect
from sparkguard.errors import ConfigError, SinkError
from sparkguard.sinks.base import Sink, SinkTask
from sparkguard.sinks.file import FileSink
from sparkguard.sinks.kafka import KafkaSink
from sparkguard.testing import SinkSuite, sample_letters
from tests.conftest import MakeTopic
from tests.support.kafka import Broker, Message

DIALECT = NativeDialect()
TASK = SinkTask(name="dead")


def _sink(broker: Broker, topic: str, **settings: Any) -> KafkaSink:
    settings = {"dialect": DIALECT, **settings}
    return KafkaSink(bootstrap_servers=broker.servers, topic=topic, **settings)


def _record(message: Message) -> Record:
    return Record(key=message.key, value=message.value, headers=message.headers)


def _stored(broker: Broker, topic: str) -> list[Letter]:
    found = [DIALECT.read(_record(message)) for message in broker.read_all(topic)]
    return [letter for letter in found if letter is not None]


def _deliver(sink: KafkaSink, letters: Iterable[Letter], task: SinkTask = TASK) -> None:
    writer = sink.open(task)
    try:
        for letter in letters:
            writer.write(letter)
        writer.flush()
    finally:
        writer.close()


def _letters(values: Sequence[bytes], **facts: Any) -> list[Letter]:
    (model,) = sample_letters()[:1]
    return [
        replace(
            model,
            id=f"{at:032x}",
            failure=replace(
                model.failure,
                record=Record(key=str(at).encode(), value=value, topic="in", offset=at),
                **facts,
            ),
        )
        for at, value in enumerate(values)
    ]


class TestKafkaSink(SinkSuite):
    """The kafka sink does what every sink must."""

    @pytest.fixture(autouse=True)
    def _place(self, broker: Broker, topic: MakeTopic) -> None:
        self.broker = broker
        self.topic = topic(partitions=4)

    def make_sink(self) -> Sink:
        return _sink(self.broker, self.topic)

    def stored(self, sink: Sink) -> Iterable[Letter]:
        return _stored(self.broker, self.topic)


def test_the_message(broker: Broker, topic: MakeTopic) -> None:
    """Key, value and own headers are the record's; the time is the failure's."""
    name = topic()
    letters = sample_letters()
    _deliver(_sink(broker, name), letters)
    for letter, message in zip(letters, broker.read_all(name), strict=True):
        record, failed_at = letter.record, letter.failure.last_failed_at
        assert (message.key, message.value) == (record.key, record.value)
        assert message.headers[: len(record.headers)] == record.headers
        assert failed_at is not None
        assert message.timestamp == int(failed_at.timestamp() * 1000)


def test_partitions_as_java_does(broker: Broker, topic: MakeTopic) -> None:
    """A key lies in the partition in which a Java producer would have put it."""
    name = topic(partitions=7)
    _deliver(_sink(broker, name), _letters([b"v"] * 50))
    for message in broker.read_all(name):
        assert message.key is not None
        assert message.partition == (_murmur2(message.key) & 0x7FFFFFFF) % 7


def _murmur2(key: bytes) -> int:
    """`org.apache.kafka.common.utils.Utils.murmur2`, by its published constants."""
    mix, mask = 0x5BD1E995, 0xFFFFFFFF
    h = 0x9747B28C ^ len(key)
    whole = len(key) // 4 * 4
    for (k,) in struct.iter_unpack("<I", key[:whole]):
        k = k * mix & mask  # noqa: PLW2901
        k = (k ^ k >> 24) * mix & mask  # noqa: PLW2901
        h = h * mix & mask ^ k
    if rest := key[whole:]:
        h = (h ^ int.from_bytes(rest, "little")) * mix & mask
    h = (h ^ h >> 13) * mix & mask
    return h ^ h >> 15


def test_one_giant_harms_no_neighbour(broker: Broker, topic: MakeTopic) -> None:
    """P6, P17: 10 MB among healthy letters; it is named, and every other one is stored."""
    name = topic(max_message_bytes="1000000")
    letters = _letters([b"x" * 500] * 300)
    letters[150] = _letters([b"y" * 500] * 150 + [b"z" * 10_000_000])[150]
    with pytest.raises(SinkError, match=f"letter {letters[150].id} .*value 10000000") as caught:
        _deliver(_sink(broker, name, config={"linger.ms": 200}), letters)
    assert not caught.value.retriable
    found = {letter.id: letter for letter in _stored(broker, name)}
    assert found == {letter.id: letter for letter in letters if letter is not letters[150]}


def test_overflow(broker: Broker, topic: MakeTopic, tmp_path: Path) -> None:
    """P17: what is too large lies whole in the overflow sink, the topic has a pointer to it."""
    name = topic(max_message_bytes="30000")
    letters = _letters([b"x" * 100 if at % 20 else os.urandom(40_000) for at in range(200)])
    sinks: dict[str, Sink] = {"files": FileSink(path=str(tmp_path))}
    sink = _sink(broker, name, overflow="files", config={"linger.ms": 50})
    _deliver(sink, letters, SinkTask(name="dead", sinks=sinks))
    topic_letters = _stored(broker, name)
    pointers = [letter for letter in topic_letters if letter.overflow]
    whole = [letter for letter in topic_letters if not letter.overflow] + _in_files(tmp_path)
    assert {letter.id: letter for letter in whole} == {letter.id: letter for letter in letters}
    assert {letter.id for letter in pointers} == {letter.id for letter in letters[::20]}
    assert {letter.overflow for letter in pointers} == {"files"}
    assert all(letter.record.value is None for letter in pointers)
    assert all(letter.record.offset is not None for letter in pointers)


def _in_files(path: Path) -> list[Letter]:
    connection = duckdb.connect()
    query = f"select * exclude (date) from read_parquet('{path}/**/*.parquet')"
    names = [column[0] for column in connection.execute(query).description or ()]
    return [letter_from_row(dict(zip(names, row, strict=True))) for row in connection.fetchall()]


def test_a_batch_too_large_is_no_letter_too_large(broker: Broker, topic: MakeTopic) -> None:
    """Letters that only together exceed the topic's limit all arrive, whole."""
    name = topic(max_message_bytes="5000")
    letters = _letters([os.urandom(2_000) for _ in range(100)])
    _deliver(_sink(broker, name, config={"linger.ms": 200}), letters)
    found = {letter.id: letter for letter in _stored(broker, name)}
    assert found == {letter.id: letter for letter in letters}


@pytest.mark.parametrize(
    ("trace", "message", "kept"),
    [(90_000, 10, ("", "m" * 10)), (90_000, 30_000, ("", "")), (10, 30_000, ("", ""))],
)
def test_shrinks(
    broker: Broker, topic: MakeTopic, trace: int, message: int, kept: tuple[str, str]
) -> None:
    """P17: a letter too large for its topic loses its trace, then its message, never a byte."""
    name = topic(max_message_bytes="20000")
    letters = _letters([b"v" * 1_000], trace="t" * trace, message="m" * message)
    _deliver(_sink(broker, name), letters)
    (found,) = _stored(broker, name)
    assert (found.failure.trace, found.failure.message) == kept
    assert found.record == letters[0].record


def test_check(broker: Broker, topic: MakeTopic) -> None:
    """P16: an existing topic passes; a missing one is refused, and not made by asking for it."""
    existing = topic()
    _sink(broker, existing).check("dead", frozenset({"orders"}))
    missing = f"{existing}-missing"
    with pytest.raises(ConfigError, match="does not exist"):
        _sink(broker, missing).check("dead", frozenset())
    assert missing not in broker.topics()


def test_create(broker: Broker, topic: MakeTopic) -> None:
    """`create: true` makes the topic, with its partitions, and letters can be sent at once."""
    name = f"{topic()}-made"
    sink = _sink(broker, name, create=True, partitions=3, replication=1)
    sink.check("dead", frozenset())
    sink.check("dead", frozenset())
    _deliver(sink, sample_letters())
    assert len(broker.end_offsets(name)) == 3
    assert {one.id for one in _stored(broker, name)} == {one.id for one in sample_letters()}
    with pytest.raises(SinkError, match=r"could not be made: .*replication"):
        _sink(broker, f"{name}-2", create=True, replication=3).check("dead", frozenset())


def test_a_forked_child_delivers(broker: Broker, topic: MakeTopic) -> None:
    """A worker that was forked after its parent used the sink makes a producer of its own."""
    name = topic()
    sink, letters = _sink(broker, name), sample_letters()
    _deliver(sink, letters[:1])
    child = os.fork()
    if child == 0:
        status = 1
        try:
            _deliver(sink, letters[1:])
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert {one.id: one for one in _stored(broker, name)} == {one.id: one for one in letters}


def test_a_deleted_topic_is_an_error(broker: Broker, topic: MakeTopic) -> None:
    """P2: letters for a topic that was deleted while running are not counted as stored."""
    name = topic()
    sink = _sink(broker, name, config={"topic.metadata.propagation.max.ms": 500, "retries": 3})
    _deliver(sink, sample_letters()[:1])
    broker.delete_topic(name)
    with pytest.raises(SinkError, match="were not acknowledged"):
        _deliver(
            replace(sink, config={**sink.config, "delivery.timeout.ms": 5_000}), sample_letters()
        )


def test_a_broker_that_goes_and_comes() -> None:
    """P2: a frozen broker fails the flush in time; letters sent again after it is back arrive."""
    with Broker() as own:
        name = own.create_topic("dead")
        sink = _sink(own, name, config={"delivery.timeout.ms": 2_000, "socket.timeout.ms": 1_000})
        letters = sample_letters()
        _deliver(sink, letters[:3])
        own.pause()
        with pytest.raises(SinkError, match="were not acknowledged") as caught:
            _deliver(sink, letters)
        assert caught.value.retriable
        own.resume()
        _deliver(sink, letters)
        assert {one.id: one for one in _stored(own, name)} == {one.id: one for one in letters}


def test_a_broker_killed_while_letters_wait() -> None:
    """P2: the flush outlasts a broker's restart within the delivery timeout."""
    with Broker() as own:
        name = own.create_topic("dead")
        sink = _sink(own, name, config={"linger.ms": 1_000, "reconnect.backoff.max.ms": 200})
        letters = _letters([b"v" * 1_000] * 200)
        writer = sink.open(TASK)
        for letter in letters[:100]:
            writer.write(letter)
        own.kill()
        for letter in letters[100:]:
            writer.write(letter)
        own.start()
        writer.flush()
        writer.close()
        assert {one.id: one for one in _stored(own, name)} == {one.id: one for one in letters}
