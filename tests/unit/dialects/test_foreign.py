"""The dialects of other tools: their bytes, and what is read from what they wrote."""

import struct
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given

from sparkguard.core.failure import Category, Cause, Failure
from sparkguard.core.instant import milliseconds
from sparkguard.core.letter import Letter
from sparkguard.core.letter_row import letter_table
from sparkguard.core.record import Record
from sparkguard.core.text import utf8
from sparkguard.dialects.base import Dialect
from sparkguard.dialects.connect import ConnectDialect
from sparkguard.dialects.kafka_streams import KafkaStreamsDialect
from sparkguard.dialects.native import NativeDialect
from sparkguard.dialects.spring import SpringDialect
from tests.support.letters import ANY, letters

STREAMS, CONNECT, SPRING = KafkaStreamsDialect(), ConnectDialect(), SpringDialect()
ALL: tuple[Dialect, ...] = (STREAMS, CONNECT, SPRING)
WHEN = datetime(2024, 2, 29, 12, tzinfo=UTC)
LETTER = Letter(
    id="1",
    failure=Failure(
        stage="decode",
        category=Category.DESERIALIZATION,
        cause=Cause.POISON,
        exception_types=("ValueError", "Exception"),
        message="naïve",
        trace="Traceback\n",
        app="orders",
        flow="main",
        record=Record(
            key=b"k",
            value=b"\xff",
            headers=(("own", b"\x00"), ("own", None)),
            timestamp=WHEN,
            topic="in",
            partition=3,
            offset=258,
        ),
    ),
)
OWN = list(LETTER.record.headers)


def _message(dialect: Dialect, letter: Letter) -> Record:
    record = letter.record
    return Record(
        key=record.key,
        value=record.value,
        headers=tuple(dialect.headers(letter)),
        timestamp=WHEN,
        topic="dead",
        partition=0,
        offset=1,
    )


def _without_origin(letter: Letter) -> Letter:
    bare = Record(value=letter.record.value, headers=letter.record.headers)
    return replace(letter, failure=replace(letter.failure, record=bare, message=""))


def test_streams_bytes() -> None:
    """KIP-1034: six headers, all of them text."""
    assert STREAMS.headers(LETTER) == [
        *OWN,
        ("__streams.errors.exception", b"ValueError"),
        ("__streams.errors.message", "naïve".encode()),
        ("__streams.errors.stacktrace", b"Traceback\n"),
        ("__streams.errors.topic", b"in"),
        ("__streams.errors.partition", b"3"),
        ("__streams.errors.offset", b"258"),
    ]
    assert STREAMS.headers(_without_origin(LETTER))[2:] == [
        ("__streams.errors.exception", b"ValueError"),
        ("__streams.errors.message", None),
        ("__streams.errors.stacktrace", b"Traceback\n"),
        ("__streams.errors.topic", None),
        ("__streams.errors.partition", b"-1"),
        ("__streams.errors.offset", b"-1"),
    ]


def test_connect_bytes() -> None:
    """Ten headers of text; a fact that is not known is null."""
    assert CONNECT.headers(LETTER) == [
        *OWN,
        ("__connect.errors.topic", b"in"),
        ("__connect.errors.partition", b"3"),
        ("__connect.errors.offset", b"258"),
        ("__connect.errors.connector.name", b"orders"),
        ("__connect.errors.task.id", None),
        ("__connect.errors.stage", b"decode"),
        ("__connect.errors.class.name", b"main"),
        ("__connect.errors.exception.class.name", b"ValueError"),
        ("__connect.errors.exception.message", "naïve".encode()),
        ("__connect.errors.exception.stacktrace", b"Traceback\n"),
    ]


def test_spring_bytes() -> None:
    """Integers are big-endian: four bytes of partition, eight of offset and of time."""
    assert SPRING.headers(LETTER) == [
        *OWN,
        ("kafka_dlt-exception-fqcn", b"ValueError"),
        ("kafka_dlt-exception-message", "naïve".encode()),
        ("kafka_dlt-exception-stacktrace", b"Traceback\n"),
        ("kafka_dlt-original-topic", b"in"),
        ("kafka_dlt-original-partition", b"\x00\x00\x00\x03"),
        ("kafka_dlt-original-offset", b"\x00\x00\x00\x00\x00\x00\x01\x02"),
        ("kafka_dlt-original-timestamp", b"\x00\x00\x01\x8d\xf4\xbc\x56\x00"),
        ("kafka_dlt-original-timestamp-type", b"CreateTime"),
        ("kafka_dlt-original-consumer-group", b"orders"),
    ]
    names = [name for name, _ in SPRING.headers(_without_origin(LETTER))[2:]]
    assert names == [
        "kafka_dlt-exception-fqcn",
        "kafka_dlt-exception-stacktrace",
        "kafka_dlt-original-consumer-group",
    ]


@pytest.mark.parametrize("dialect", ALL, ids=["streams", "connect", "spring"])
@given(letter=letters(ANY))
def test_round_trip(dialect: Dialect, letter: Letter) -> None:
    """What a dialect carries comes back, and the record's bytes, also of a record that was one."""
    once = replace(letter.record, headers=tuple(dialect.headers(LETTER)))
    for one in (letter, replace(letter, failure=replace(letter.failure, record=once))):
        found = dialect.read(_message(dialect, one))
        assert found is not None
        wrote, read = one.failure, found.failure
        assert found.record.key == one.record.key
        assert found.record.value == one.record.value
        assert found.record.headers == tuple((utf8(n), v) for n, v in one.record.headers)
        assert (found.record.topic or "") == utf8(one.record.topic or "")
        assert found.record.partition == one.record.partition
        assert found.record.offset == one.record.offset
        assert read.message == utf8(wrote.message)
        assert read.trace == utf8(wrote.trace)
        if dialect is not STREAMS:
            assert read.exception_type == utf8(wrote.exception_type)
            assert read.app == utf8(wrote.app)
        if dialect is CONNECT:
            assert (read.stage, read.flow) == (utf8(wrote.stage), utf8(wrote.flow))
        when = one.record.timestamp
        if dialect is SPRING and when is not None and milliseconds(when) >= 0:
            assert found.record.timestamp == when - timedelta(microseconds=when.microsecond % 1000)
        letter_table([found])


@pytest.mark.parametrize("dialect", ALL, ids=["streams", "connect", "spring"])
def test_id_of_what_has_none(dialect: Dialect) -> None:
    """P3: stored twice, a letter has one id; of unknown origin, each message has its own."""
    message = _message(dialect, LETTER)
    first, second = (dialect.read(replace(message, offset=at)) for at in (1, 2))
    assert first == second
    bare = _message(dialect, _without_origin(LETTER))
    ids = {found.id for at in (1, 2, 2) if (found := dialect.read(replace(bare, offset=at)))}
    assert len(ids) == 2


@pytest.mark.parametrize("dialect", ALL, ids=["streams", "connect", "spring"])
def test_one_record_fails_twice(dialect: Dialect) -> None:
    """P3: what a tool set aside for two apps, or two children of a record, are two letters."""
    other = replace(LETTER, failure=replace(LETTER.failure, message="another"))
    found = [dialect.read(_message(dialect, one)) for one in (LETTER, other)]
    assert found[0] is not None
    assert found[1] is not None
    assert found[0].id != found[1].id


@pytest.mark.parametrize("dialect", ALL, ids=["streams", "connect", "spring"])
def test_other_dialects(dialect: Dialect) -> None:
    """A message of another dialect, or of none, is no letter of this one."""
    for other in (*ALL, NativeDialect()):
        if other != dialect:
            assert dialect.read(_message(other, LETTER)) is None
    assert dialect.read(Record(headers=(("a", b"b"), ("", None)))) is None
    assert NativeDialect().read(_message(dialect, LETTER)) is None


@pytest.mark.parametrize(
    "number", [b"", b"x", b"-1", b"-7", b"\xff", b"1_0", b"9" * 19, b"9" * 5000, b"\xd9\xa1", None]
)
def test_garbage_in_place_of_numbers(number: bytes | None) -> None:
    """What is no number is an unknown coordinate, and the letter can be stored."""
    for prefix, dialect in (("__streams.errors.", STREAMS), ("__connect.errors.", CONNECT)):
        headers = ((f"{prefix}partition", number), (f"{prefix}offset", b"7"))
        found = dialect.read(Record(headers=headers))
        assert found is not None
        assert (found.record.partition, found.record.offset) == (None, 7)
        assert letter_table([found]).num_rows == 1


@pytest.mark.parametrize("bits", [b"", b"\x01", b"\xff" * 8, b"\x00" * 3 + b"\x01" * 9])
def test_garbage_in_spring(bits: bytes) -> None:
    """Integers of a wrong length, or below 0, are unknown, and so is a date after year 9999."""
    late = struct.pack(">q", 2**62)
    found = SPRING.read(
        Record(
            headers=(
                ("kafka_dlt-original-offset", bits),
                ("kafka_dlt-original-partition", bits),
                ("kafka_dlt-original-timestamp", late),
            )
        )
    )
    assert found is not None
    assert found.record == Record()


def test_what_streams_wrote_first() -> None:
    """Its first release put the whole toString() where the class belongs."""
    headers = (
        ("__streams.errors.exception", b"org.apache.kafka.SerializationException: too short"),
        ("__streams.errors.message", b"too short"),
    )
    found = STREAMS.read(Record(headers=headers, timestamp=WHEN))
    assert found is not None
    assert found.failure.exception_type == "org.apache.kafka.SerializationException"
    assert found.failure.category is Category.DESERIALIZATION
    assert found.record.timestamp == WHEN


def test_connect_stages() -> None:
    """Connect's converters are deserialization, its puts production."""
    for stage, category in (
        (b"VALUE_CONVERTER", Category.DESERIALIZATION),
        (b"TASK_PUT", Category.PRODUCTION),
        (b"TRANSFORMATION", Category.PROCESSING),
        (b"NEW_ONE", Category.PROCESSING),
    ):
        found = CONNECT.read(Record(headers=(("__connect.errors.stage", stage),)))
        assert found is not None
        assert found.failure.category is category


def test_spring_wrappers_and_keys() -> None:
    """The cause counts before Spring's wrapper; an unreadable key has headers of its own."""
    wrapped = (
        ("kafka_dlt-exception-fqcn", b"o.s.ListenerExecutionFailedException"),
        ("kafka_dlt-exception-cause-fqcn", b"java.lang.IllegalStateException"),
    )
    found = SPRING.read(Record(headers=wrapped, timestamp=WHEN))
    assert found is not None
    assert found.failure.exception_type == "java.lang.IllegalStateException"
    assert found.failure.last_failed_at == WHEN
    of_key = (
        ("kafka_dlt-key-exception-fqcn", b"o.s.DeserializationException"),
        ("kafka_dlt-key-exception-message", b"no key"),
    )
    found = SPRING.read(Record(headers=of_key))
    assert found is not None
    assert (found.failure.message, found.failure.category) == ("no key", Category.DESERIALIZATION)


def test_twice_a_letter() -> None:
    """Of several headers of one name the last counts, the ones before it are the record's."""
    again = replace(LETTER.record, headers=tuple(SPRING.headers(LETTER)), topic="retry", offset=7)
    second = replace(LETTER, failure=replace(LETTER.failure, record=again, message=""))
    found = SPRING.read(_message(SPRING, second))
    assert found is not None
    assert (found.record.topic, found.record.offset) == ("retry", 7)
    assert found.failure.message == ""
    assert found.record.headers == again.headers
