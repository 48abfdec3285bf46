import pickle
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from sparkguard.core.letter import Letter
from sparkguard.core.record import Record
from sparkguard.dialects.native import NativeDialect
from sparkguard.errors import ConfigError, SinkError
from sparkguard.sinks._kafka_writer import _timestamp
from sparkguard.sinks.base import SinkTask, Writer
from sparkguard.sinks.file import FileSink
from sparkguard.sinks.kafka import KafkaSink
from sparkguard.testing import sample_letters
from tests.support.process import free_port

TASK = SinkTask(name="dead")
SECRETS = {"sasl.password": "hunter2", "sasl.username": "me", "ssl.key.pem": "-----BEGIN"}


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    """A cluster that librdkafka plays itself, without a JVM."""
    producer = Producer({"test.mock.num.brokers": 1, "bootstrap.servers": "", "log_level": 0})
    (mock,) = producer.list_topics(timeout=10).brokers.values()
    yield f"{mock.host}:{mock.port}"
    producer.flush(1)


def _sink(servers: str, **settings: Any) -> KafkaSink:
    settings = {"topic": "dead", "dialect": NativeDialect(), **settings}
    return KafkaSink(bootstrap_servers=servers, **settings)


def test_acknowledged(servers: str) -> None:
    """P2: flush returns when all letters of this writer are acknowledged."""
    writer = _sink(servers, topic="acknowledged").open(TASK)
    _write_all(writer, sample_letters())
    writer.flush()
    assert _stored(servers, "acknowledged") == len(sample_letters())
    writer.flush()
    writer.close()
    assert _stored(servers, "acknowledged") == len(sample_letters())


def test_refuses_a_loop(servers: str) -> None:
    """P16: a dead-letter topic that the query reads is refused when it is built."""
    with pytest.raises(ConfigError, match="the query reads the topic 'dead' itself"):
        _sink(servers).check("dead", frozenset({"orders", "dead"}))


def test_refuses_its_own_record(servers: str) -> None:
    """P16: a record that came from the sink's own topic is refused, before anything is sent."""
    (letter,) = sample_letters("dead")[:1]
    assert "dead[0]@0" in str(_sink(servers).refuses(letter))
    assert _sink(servers, topic="other").refuses(letter) is None


def test_missing_topic(servers: str) -> None:
    """P16: a topic that does not exist is refused, with the ways out."""
    with pytest.raises(ConfigError, match=r"'create: true'.*kafka-topics.sh .* --topic missing"):
        _sink(servers, topic="missing").check("dead", frozenset({"orders"}))


def test_no_broker() -> None:
    """A broker that is not there at start gives a sentence within seconds, not a hang."""
    started = time.monotonic()
    servers = f"127.0.0.1:{free_port()}"
    with pytest.raises(SinkError, match=f"no broker answers at {servers}.*refused"):
        _sink(servers).check("dead", frozenset())
    assert time.monotonic() - started < 10


def test_no_broker_while_writing() -> None:
    """P2: letters that nobody acknowledges fail the flush when the delivery timeout ends."""
    sink = _sink(f"127.0.0.1:{free_port()}", config={"delivery.timeout.ms": 1_000})
    writer = sink.open(TASK)
    writer.write(sample_letters()[0])
    started = time.monotonic()
    with pytest.raises(SinkError, match=r"were not acknowledged.*timed out.*refused") as caught:
        writer.flush()
    assert time.monotonic() - started < 10
    assert caught.value.retriable
    writer.close()


def test_a_cancelled_task_does_not_wait() -> None:
    """P7: a task that is being stopped does not wait for a broker that is gone."""
    sink = _sink(f"127.0.0.1:{free_port()}")
    writer = sink.open(SinkTask(name="dead", cancelled=lambda: True))
    with pytest.raises(SinkError, match="being stopped"):
        writer.write(sample_letters()[0])
    writer.close()


@pytest.mark.parametrize("room", [2, 10_000])
def test_cancelled_while_waiting(room: int) -> None:
    """P7: the wait for room in the queue, and that for an answer, end within a second."""
    until = time.monotonic() + 0.5
    task = SinkTask(name="dead", cancelled=lambda: time.monotonic() > until)
    config = {"queue.buffering.max.messages": room}
    with pytest.raises(SinkError, match="being stopped"):
        _write(_sink(f"127.0.0.1:{free_port()}", config=config), task)
    assert time.monotonic() - until < 1


@pytest.mark.parametrize("key", ["delivery.timeout.ms", "message.timeout.ms"])
def test_a_full_queue_waits(key: str) -> None:
    """More letters than the producer's queue holds wait for room, no longer than the timeout."""
    config = {key: 1_000, "queue.buffering.max.messages": 5}
    writer = _sink(f"127.0.0.1:{free_port()}", config=config).open(TASK)
    with pytest.raises(SinkError, match="were not acknowledged"):
        _write_all(writer, sample_letters() * 3)
    writer.close()


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"linger.sm": 1}, 'sinks.dead.config: No such configuration property: "linger.sm"'),
        ({"linger.ms": "soon"}, "Invalid value for configuration property"),
        ({"acks": 1}, "config.acks: must be 'all'"),
        ({"request.required.acks": "0"}, "must be 'all'"),
        ({"bootstrap.servers": "x"}, "is the setting 'bootstrap_servers'"),
        ({"transactional.id": "x"}, "transactions"),
        ({"delivery.report.only.error": True}, "acknowledgements"),
    ],
)
def test_wrong_config(servers: str, config: dict[str, Any], words: str) -> None:
    """What librdkafka does not know, or what would weaken the promise, is an error at start."""
    with pytest.raises(ConfigError) as caught:
        _sink(servers, config=config).check("dead", frozenset())
    assert words in str(caught.value)


@pytest.mark.parametrize("topic", ["", "a b", "x" * 250, "orders/dead"])
def test_wrong_topic(topic: str) -> None:
    """A name that Kafka would refuse is refused when the settings are read."""
    with pytest.raises(ConfigError, match="no name for a Kafka topic"):
        KafkaSink(bootstrap_servers="x", topic=topic)


def test_secrets_are_masked(servers: str) -> None:
    """P18: neither the sink nor its errors show a secret."""
    sink = _sink(servers, config=SECRETS)
    assert "hunter2" not in repr(sink)
    assert "BEGIN" not in repr(sink)
    assert "'sasl.username': 'me'" in repr(sink)
    assert sink.client["sasl.password"] == "hunter2"
    wrong = _sink(servers, config={"sasl.password": "hunter2", "security.protocol": "hunter2"})
    with pytest.raises(ConfigError) as caught:
        wrong.check("dead", frozenset())
    assert "hunter2" not in str(caught.value)
    with pytest.raises(SinkError) as failed:
        wrong.open(TASK)
    assert "hunter2" not in str(failed.value)


def test_names_must_be_resolved(servers: str) -> None:
    """A dialect or an overflow sink that is only a name fails with a sentence."""
    with pytest.raises(SinkError, match="'native' is only a name"):
        _sink(servers, dialect="native").open(TASK)
    with pytest.raises(SinkError, match="overflow sink 'files' is not in the settings"):
        _sink(servers, overflow="files").open(TASK)
    with pytest.raises(SinkError, match="name a file sink"):
        _sink(servers, overflow="x").open(SinkTask(sinks={"x": _sink(servers)}))


def test_too_large_for_the_client(servers: str, tmp_path: Any) -> None:
    """P17: a letter above `message.max.bytes` goes to the overflow sink, else it is an error."""
    config = {"message.max.bytes": 100_000}
    sinks = {"files": FileSink(path=str(tmp_path))}
    letters = sample_letters()
    with pytest.raises(SinkError, match=r"value 896000.*'overflow:'") as caught:
        _write(_sink(servers, config=config), TASK)
    assert not caught.value.retriable
    assert letters[-1].id in str(caught.value)
    _write(_sink(servers, config=config, overflow="files"), SinkTask(sinks=sinks))
    assert len(list(tmp_path.glob("**/*.parquet"))) == 1


def _write(sink: KafkaSink, task: SinkTask) -> None:
    writer = sink.open(task)
    _write_all(writer, sample_letters())
    writer.flush()
    writer.close()


def _write_all(writer: Writer, letters: Iterable[Letter]) -> None:
    for letter in letters:
        writer.write(letter)


def test_one_producer_a_process(servers: str) -> None:
    """Tasks of one process share a producer; other settings get another."""
    first, second, other = (
        _sink(servers).open(TASK),
        pickle.loads(pickle.dumps(_sink(servers))).open(TASK),
        _sink(servers, config={"linger.ms": 1}).open(TASK),
    )
    assert _producer(first) is _producer(second)
    assert _producer(first) is not _producer(other)


def _producer(writer: Any) -> object:
    return writer._courier._clients[False].producer


def test_tasks_in_threads(servers: str) -> None:
    """P2: reports come in any thread that polls; each flush waits for all of its own letters."""
    sink = _sink(servers, topic="threads")
    letters = sample_letters()[:5] * 60

    def task(_: int) -> int:
        writer = sink.open(TASK)
        _write_all(writer, letters)
        writer.flush()
        assert not writer._courier.waits  # type: ignore[attr-defined]
        writer.close()
        return _stored(servers, "threads")

    with ThreadPoolExecutor(3) as pool:
        stored = list(pool.map(task, range(6)))
    assert min(stored) >= len(letters)
    assert max(stored) == 6 * len(letters)


def _stored(servers: str, topic: str) -> int:
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "x"})
    partitions = consumer.list_topics(topic, timeout=10).topics[topic].partitions
    ends = [consumer.get_watermark_offsets(TopicPartition(topic, at), 10)[1] for at in partitions]
    consumer.close()
    return sum(ends)


def test_the_time_of_a_message() -> None:
    """Whole milliseconds since 1970, whatever the zone; 0, for none, where Kafka takes none."""
    when = datetime(2025, 3, 1, 12, 0, 0, 999_999, tzinfo=UTC)
    expected = 1_740_830_400_999
    zones = [when, when.replace(tzinfo=None), when.astimezone(timezone(timedelta(hours=-7)))]
    assert [_timestamp(one) for one in zones] == [expected] * 3
    assert [_timestamp(one) for one in (None, datetime(1969, 1, 1, tzinfo=UTC))] == [0, 0]


def test_record_without_time(servers: str) -> None:
    """A letter whose failure has no time, or one before 1970, can be sent."""
    writer = _sink(servers, topic="timeless").open(TASK)
    for when in (None, datetime.min.replace(tzinfo=UTC), datetime(1969, 1, 1, tzinfo=UTC)):
        (letter,) = sample_letters()[:1]
        failure = replace(letter.failure, last_failed_at=when, record=Record(timestamp=when))
        writer.write(replace(letter, failure=failure))
    writer.flush()
    writer.close()
    assert _stored(servers, "timeless") == 3
