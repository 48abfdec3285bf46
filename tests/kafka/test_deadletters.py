"""Letters read back from a real broker; ids and bytes are compared, never counts alone."""

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from sparkguard.cli import app
from sparkguard.core.letter import Letter
from sparkguard.core.record import Record
from sparkguard.deadletters.store import Store
from sparkguard.deadletters.topic import Bounds
from sparkguard.dialects.base import Dialect
from sparkguard.dialects.connect import ConnectDialect
from sparkguard.dialects.kafka_streams import KafkaStreamsDialect
from sparkguard.dialects.native import NativeDialect
from sparkguard.dialects.spring import SpringDialect
from sparkguard.errors import LettersError
from sparkguard.plugins import load
from sparkguard.sinks.base import SinkTask
from sparkguard.sinks.file import FileSink
from sparkguard.sinks.kafka import KafkaSink
from sparkguard.testing import sample_letters
from tests.conftest import MakeTopic
from tests.support.kafka import Broker, Message

DIALECTS = [*load([]).dialects.values()]
NOWHERE = "127.0.0.1:1"


def _sink(broker: Broker, topic: str, dialect: Dialect, **settings: Any) -> KafkaSink:
    return KafkaSink(
        bootstrap_servers=broker.servers, topic=topic, dialect=dialect, config=settings
    )


def _write(sink: KafkaSink | FileSink, letters: Sequence[Letter]) -> None:
    writer = sink.open(SinkTask(name="dead"))
    for letter in letters:
        writer.write(letter)
    writer.flush()
    writer.close()


def _store(broker: Broker, topic: str, **bounds: Any) -> Store:
    sink = _sink(broker, topic, NativeDialect())
    return Store({"topic": sink}, bounds=Bounds(**bounds), dialects=DIALECTS)


def test_native(broker: Broker, topic: MakeTopic) -> None:
    """Every letter comes back whole, one that was stored twice comes once."""
    name = topic(partitions=3)
    letters = sample_letters()
    for _ in range(2):
        _write(_sink(broker, name, NativeDialect()), letters)
    with _store(broker, name) as store:
        found = {letter.id: letter for letter in store.letters()}
        assert found == {letter.id: letter for letter in letters}
        assert store.stats().copies == len(letters)
        assert store.skipped == ()
        assert {row["place"].partition("[")[0] for row in store.rows()} == {name}


def test_all_dialects_in_one_topic(broker: Broker, topic: MakeTopic) -> None:
    """What other tools wrote is read beside ours; what is no letter is counted."""
    name = topic()
    letters = sample_letters()[:4]
    spoken: list[Dialect] = [
        NativeDialect(),
        KafkaStreamsDialect(),
        ConnectDialect(),
        SpringDialect(),
    ]
    for dialect, letter in zip(spoken, letters, strict=True):
        _write(_sink(broker, name, dialect), [letter])
    spring = tuple(SpringDialect().headers(letters[3]))
    odd = [
        Message(value=b"no letter"),
        Message(headers=(("sparkguard.id", b"1"),)),
        # A letter of a version to come, of a record that was Spring's letter before.
        Message(headers=(*spring, ("sparkguard.id", b"1"), ("sparkguard.facts", b"one"))),
        Message(value=b"microseconds", timestamp=1_769_846_400_000_000),
    ]
    broker.produce(name, odd)
    with _store(broker, name) as store:
        found = {letter.record.offset: letter.record for letter in store.letters()}
        (skipped,) = store.skipped
        groups = store.groups()
    assert {at: (one.topic, one.key, one.value) for at, one in found.items()} == {
        one.record.offset: (one.record.topic, one.record.key, one.record.value) for one in letters
    }
    assert (skipped.place, skipped.count) == (f"topic {name}", len(odd))
    assert sum(group.count for group in groups) == len(letters)
    assert all(group.fingerprint for group in groups)


def test_failed_again_elsewhere(broker: Broker, topic: MakeTopic) -> None:
    """Of a letter that was sent back and failed in another tool, that tool's facts count."""
    name = topic()
    first = sample_letters()[0]
    again = replace(first.record, headers=tuple(NativeDialect().headers(first)), topic="redrive")
    second = replace(first, failure=replace(first.failure, record=again))
    _write(_sink(broker, name, ConnectDialect()), [second])
    with _store(broker, name) as store:
        (found,) = store.letters()
    assert found.record.topic == "redrive"
    assert found.record.headers == again.headers


def test_bounds(broker: Broker, topic: MakeTopic) -> None:
    """A scan takes the partitions, the offsets and the time that it is asked for."""
    name = topic(partitions=2)
    letters = sample_letters()
    messages = [
        Message(
            value=letter.record.value,
            headers=tuple(NativeDialect().headers(letter)),
            partition=at % 2,
            timestamp=int(_failed(letter).timestamp() * 1000),
        )
        for at, letter in enumerate(letters)
    ]
    broker.produce(name, messages)

    def ids(**bounds: Any) -> set[str]:
        with _store(broker, name, **bounds) as store:
            return {letter.id for letter in store.letters()}

    known = [letter.id for letter in letters]
    assert ids() == ids(since=datetime(1900, 1, 1, tzinfo=UTC)) == {*known}
    assert ids(since=datetime(1969, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC)) == {*known}
    assert ids(partitions=frozenset({1})) == {*known[1::2]}
    assert ids(partitions=frozenset({0}), first=1, last=2) == {*known[2:5:2]}
    assert ids(since=_failed(letters[3])) == {*known[3:]}
    assert ids(since=_failed(letters[-1]) + timedelta(days=1)) == set()
    with pytest.raises(LettersError, match="has no partition 7"):
        ids(partitions=frozenset({7}))


def _failed(letter: Letter) -> Any:
    return letter.failure.last_failed_at


def test_ends_at_a_transaction(broker: Broker, topic: MakeTopic) -> None:
    """Tools write letters in transactions: their marks end a scan, aborted letters are none."""
    from confluent_kafka import Producer

    name = topic()
    producer = Producer({"bootstrap.servers": broker.servers, "transactional.id": name})
    producer.init_transactions(30)
    letters = sample_letters()[:2]
    for letter, end in zip(
        letters, (producer.commit_transaction, producer.abort_transaction), strict=True
    ):
        producer.begin_transaction()
        headers: Any = NativeDialect().headers(letter)
        producer.produce(name, letter.record.value, headers=headers)
        producer.flush(30)
        end(30)
    with _store(broker, name) as store:
        assert [letter.id for letter in store.letters()] == [letters[0].id]


def test_pointer_and_whole_letter(broker: Broker, topic: MakeTopic, tmp_path: Path) -> None:
    """A letter too large for its topic is one letter, the whole one."""
    name = topic(max_message_bytes="20000")
    files = FileSink(path=str(tmp_path))
    sink = replace(_sink(broker, name, NativeDialect()), overflow="files")
    large = sample_letters()[-1]
    writer = sink.open(SinkTask(name="dead", sinks={"files": files}))
    writer.write(large)
    writer.flush()
    with Store({"topic": sink, "files": files}, dialects=DIALECTS) as store:
        assert [*store.letters()] == [large]
    with Store({"topic": sink}, dialects=DIALECTS) as store:
        (pointer,) = store.letters()
    assert (pointer.id, pointer.overflow, pointer.record.value) == (large.id, "files", None)


def test_many(broker: Broker, topic: MakeTopic) -> None:
    """More letters than a spool holds in memory, all of them there."""
    name = topic(partitions=2)
    model = sample_letters()[0]

    def headers(at: int) -> tuple[tuple[str, bytes | None], ...]:
        return tuple(NativeDialect().headers(replace(model, id=f"{at:032x}")))

    broker.produce(name, (Message(value=b"v" * 100, headers=headers(at)) for at in range(25_000)))
    with _store(broker, name) as store:
        assert store.sql("select count(*), count(distinct id) from letters").rows == [
            (25_000, 25_000)
        ]


def test_command(broker: Broker, topic: MakeTopic) -> None:
    """`dlq ls` reads a topic by name; a topic or a broker that is not there is a sentence."""
    name = topic()
    _write(_sink(broker, name, SpringDialect()), sample_letters()[:1])
    where = ["--bootstrap-servers", broker.servers]
    run = CliRunner()
    done = run.invoke(app, ["dlq", "ls", "--topic", name, *where, "--json"])
    assert (done.exit_code, json.loads(done.stdout)["letters"]) == (0, 1)
    done = run.invoke(app, ["dlq", "ls", "--topic", "nope", *where])
    assert done.exit_code == 1
    assert "There is no topic 'nope'" in done.stderr
    assert name in done.stderr
    began = time.monotonic()
    done = run.invoke(app, ["dlq", "ls", "--topic", name, "--bootstrap-servers", NOWHERE])
    assert time.monotonic() - began < 7
    assert done.exit_code == 1
    assert f"No broker answers at {NOWHERE}" in done.stderr
    done = run.invoke(app, ["dlq", "ls", "--topic", name, *where, "--client", "nope=1"])
    assert done.exit_code == 1
    assert "nope" in done.stderr


def test_empty_topic(broker: Broker, topic: MakeTopic) -> None:
    """A topic without messages holds no letters, and is no error."""
    with _store(broker, topic(partitions=3)) as store:
        assert store.groups() == []
        assert [*store.letters()] == []


def test_record_is_read_by_any_dialect() -> None:
    """The dialects of the plugins are those that a topic is read with."""
    assert {type(one) for one in DIALECTS} == {
        NativeDialect,
        KafkaStreamsDialect,
        ConnectDialect,
        SpringDialect,
    }
    assert all(one.read(Record()) is None for one in DIALECTS)
