"""The real parts of the tests work together: broker, clients, Spark's connector."""

import pytest
from confluent_kafka import KafkaException
from pyspark.sql import DataFrame, Row, SparkSession

from tests.conftest import MakeTopic
from tests.support.kafka import Broker, Message

ODD = [
    Message(key=None, value=b"no key", headers=(("h", b"1"),)),
    Message(key=b"\xff\xfe", value=b"no UTF-8 in the key"),
    Message(key=b"tombstone", value=None),
    Message(key=b"empty", value=b"", headers=(("empty", b""), ("null", None))),
    Message(key=b"twice", value=b"v", headers=(("h", b"1"), ("h", b"\x00\xff"))),
]
PLAIN = [Message(key=b"%d" % i, value=b"value %d" % i) for i in range(95)]

Facts = tuple[bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]


def test_spark_reads_what_was_sent(spark: SparkSession, broker: Broker, topic: MakeTopic) -> None:
    """Spark's connector gives key, value and headers of each record, byte for byte."""
    name = topic(partitions=4)
    broker.produce(name, ODD + PLAIN)

    rows = _read(spark, broker, name).collect()

    assert len(rows) == 100
    assert {_facts(row) for row in rows} == {(m.key, m.value, m.headers) for m in ODD + PLAIN}


def test_read_all_gives_everything_in_order(broker: Broker, topic: MakeTopic) -> None:
    """The tests' own reader finds the same bytes, headers, timestamps and coordinates."""
    name = topic(partitions=2)
    sent = [
        Message(key=m.key, value=m.value, headers=m.headers, partition=1, timestamp=1_000 + i)
        for i, m in enumerate(ODD)
    ]

    broker.produce(name, sent)

    found = broker.read_all(name)
    assert [(m.partition, m.offset) for m in found] == [(1, i) for i in range(len(ODD))]
    assert [(m.key, m.value, m.headers, m.timestamp) for m in found] == [
        (m.key, m.value, m.headers, m.timestamp) for m in sent
    ]
    assert broker.end_offsets(name) == {0: 0, 1: len(ODD)}


def test_a_refused_message_is_an_error(broker: Broker, topic: MakeTopic) -> None:
    """A message that is lost quietly here would make every other test worthless."""
    name = topic(max_message_bytes="1000")

    with pytest.raises(KafkaException, match="MSG_SIZE_TOO_LARGE"):
        broker.produce(name, [Message(value=b"x" * 2_000)])


def test_no_topic_appears_by_itself(broker: Broker) -> None:
    """Writing to a topic that is not there must fail, as on a broker in production."""
    with pytest.raises(KafkaException):
        broker.produce("never-created", [Message(value=b"x")])

    assert "never-created" not in broker.topics()


def test_a_killed_broker_comes_back_with_its_data() -> None:
    """Kill, pause and stop keep address and data, so that outages can be tested."""
    with Broker({"message.max.bytes": "2000000"}) as broker:
        broker.create_topic("kept", 2)
        broker.produce("kept", PLAIN)
        before = broker.read_all("kept")

        broker.kill()
        assert not broker.running
        broker.start()
        broker.pause()
        broker.resume()
        broker.stop()
        broker.start()

        assert broker.read_all("kept") == before
        broker.produce("kept", [Message(value=b"x" * 1_900_000)])
        assert len(broker.read_all("kept")) == len(PLAIN) + 1


def _read(spark: SparkSession, broker: Broker, topic: str) -> DataFrame:
    return (
        spark.read.format("kafka")
        .option("kafka.bootstrap.servers", broker.servers)
        .option("subscribe", topic)
        .option("includeHeaders", "true")
        .load()
    )


def _facts(row: Row) -> Facts:
    headers = tuple((h.key, _bytes(h.value)) for h in row.headers or ())
    return _bytes(row.key), _bytes(row.value), headers


def _bytes(value: bytearray | None) -> bytes | None:
    return None if value is None else bytes(value)
