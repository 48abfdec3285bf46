"""Delayed retry over a real broker: put off, held until due, sent back, tried again."""

import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import sparkguard as sg
from sparkguard.core.failure import Failure
from sparkguard.core.replay import REDRIVE_ID, RETRIES, origin, retries
from sparkguard.core.version import VERSION
from sparkguard.dialects.native import DUE, PREFIX, NativeDialect
from sparkguard.errors import ConfigError
from sparkguard.retry_service.service import Service
from tests.conftest import MakeTopic
from tests.support.kafka import Broker, Message

COUNT, PARTITIONS, SECONDS = 200, 2, 90
FIRST = int(time.time() * 1000) - COUNT
TWICE, NEVER = 7, 8
"""By the last digit of its number: what fails twice, and what never works."""


@sg.deserialize(name="decode")
def decode(value: bytes) -> int:
    """The number that a value holds."""
    return int(value)


@sg.map(returns="id long, tries int, key binary, headers string, millis long, place string")
def charge(number: int, record: sg.Record) -> dict[str, Any]:
    """An outage or a mistake that heals after two delays, and one that does not."""
    tries = retries(record)
    if number % 10 == NEVER or (number % 10 == TWICE and tries < 2):
        raise ConnectionError("down") if number % 20 < 10 else ValueError("not yet")
    first = origin(record)
    assert record.timestamp is not None
    return {
        "id": number,
        "tries": tries,
        "key": record.key,
        "headers": repr(first.headers),
        "millis": round(record.timestamp.timestamp() * 1000),
        "place": first.coordinates.partition("[")[2],
    }


def headers_of(number: int) -> tuple[tuple[str, bytes | None], ...]:
    """Names twice, an empty value, bytes that are no UTF-8."""
    return (("n", b"%d\xff" % number), ("n", None), ("sparkguard", b"mine"))


class App:
    """An app that retries later: its topics, its settings, its query and the service's."""

    def __init__(self, broker: Broker, topic: MakeTopic, folder: Path) -> None:
        self.broker, self.folder = broker, folder
        self.input, self.retry, self.back, self.dead = (topic(PARTITIONS) for _ in range(4))
        kafka = {"type": "kafka", "bootstrap_servers": broker.servers}
        self.settings = sg.Settings(
            app="later",
            state={"path": str(folder / "state")},
            sinks={
                "default": {**kafka, "topic": self.dead},
                "retry": {**kafka, "topic": self.retry},
            },
            redrive={"topic": self.back},
            stages={
                "charge": {
                    "retry_later": {"delays": ["500ms", "1s"], "then": "dead_letter"},
                    "retry": {"max_attempts": 1},
                    "budget": {"max_ratio": 1.0},
                }
            },
        )
        self.guard = sg.Guard(self.settings)
        self.service = Service(settings=self.settings, trigger=500)
        self.rows: list[Any] = []

    def start(self, spark: SparkSession) -> StreamingQuery:
        """The query, subscribed to its input and to what comes back."""
        frame = (
            spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", self.broker.servers)
            .option("subscribe", f"{self.input},{self.back}")
            .option("startingOffsets", "earliest")
            .option("includeHeaders", "true")
            .load()
        )

        @sg.foreach_batch
        def store(batch: DataFrame, batch_id: int) -> None:
            self.rows.extend(batch.collect())

        return (
            frame.transform(self.guard.flow(decode, charge, name="orders"))
            .writeStream.foreachBatch(self.guard.foreach_batch(store))
            .option("checkpointLocation", str(self.folder / "checkpoint"))
            .trigger(processingTime="300 milliseconds")
            .start()
        )


def until(there: Callable[[], bool], *queries: StreamingQuery) -> None:
    """Wait for what must come, as long as nothing has failed."""
    deadline = time.monotonic() + SECONDS
    while not there():
        for query in queries:
            assert query.isActive, query.exception()
        assert time.monotonic() < deadline, "It did not come."
        time.sleep(0.1)


def stray() -> list[Message]:
    """What a retry topic may hold beside letters with a due time."""
    letter = sg.Letter(id="0" * 32, failure=FAILURE, version=VERSION)
    native = NativeDialect()
    undated = tuple(native.headers(letter))
    return [
        Message(key=b"noise", value=b"\xff"),
        Message(key=None, value=None),
        Message(key=b"undated", value=b"1", headers=undated),
        Message(key=b"garbled", value=b"2", headers=(*undated, (DUE, b"soon"))),
    ]


FAILURE = Failure(
    stage="charge",
    category=sg.Category.PROCESSING,
    cause=sg.Cause.POISON,
    exception_types=("ValueError",),
    last_failed_at=datetime.now(UTC),
)


def test_what_is_put_off_comes_again(
    spark: SparkSession, broker: Broker, topic: MakeTopic, tmp_path: Path
) -> None:
    """P1, P9: a record is tried again when it is due, byte for byte; what never works is a letter.

    Nobody counts it twice or not at all, and what is no letter in the retry topic stops nothing.
    """
    app = App(broker, topic, tmp_path)
    broker.produce(app.retry, stray())
    broker.produce(
        app.input,
        (
            Message(
                key=b"\xff%d" % n,
                value=b"%d" % n,
                headers=headers_of(n),
                partition=n % PARTITIONS,
                timestamp=FIRST + n,
            )
            for n in range(COUNT)
        ),
    )
    twice = {n for n in range(COUNT) if n % 10 == TWICE}
    never = {n for n in range(COUNT) if n % 10 == NEVER}
    query, service = app.start(spark), app.service.start(spark, app.service.guard())
    try:
        until(
            lambda: (
                len(app.rows) == COUNT - len(never)
                and sum(broker.end_offsets(app.dead).values()) == len(never) + len(stray())
            ),
            query,
            service,
        )
    finally:
        query.stop()
        service.stop()
    assert sorted(row.id for row in app.rows) == sorted({*range(COUNT)} - never)
    for row in app.rows:
        n = row.id
        assert row.tries == (2 if n in twice else 0)
        assert (bytes(row.key), row.headers) == (b"\xff%d" % n, repr(headers_of(n)))
        assert row.millis == FIRST + n
        assert row.place == f"{n % PARTITIONS}]@{n // PARTITIONS}"

    total = app.guard.ledger.total("orders")
    delayed = 2 * len(twice | never)
    assert total.balanced
    assert (total.records_in, total.records_out) == (COUNT + delayed, COUNT - len(never))
    assert (total.total("delayed"), total.total("dead_lettered")) == (delayed, len(never))

    letters = {message.value: message for message in broker.read_all(app.dead)}
    for n in never:
        letter = letters.pop(b"%d" % n)
        assert (letter.key, letter.header(RETRIES)) == (b"\xff%d" % n, b"2")
    assert {one.key for one in letters.values()} == {one.key for one in stray()}
    due_and_sent(app)


def due_and_sent(app: App) -> None:
    """Each came back once, not before it was due, under the id of its letter."""
    dues = {}
    for message in app.broker.read_all(app.retry):
        if (due := message.header(DUE)) not in {None, b"soon"}:
            identity = message.header(f"{PREFIX}id") or b""
            dues[b"retry/" + identity] = datetime.fromisoformat((due or b"").decode())
    back = Counter(message.header(REDRIVE_ID) for message in app.broker.read_all(app.back))
    assert back == dict.fromkeys(dues, 1)


def test_what_the_topic_refuses_stops_nothing(
    spark: SparkSession, broker: Broker, topic: MakeTopic, tmp_path: Path
) -> None:
    """P17: a record too large for the redrive topic is a letter, and those beside it arrive."""
    app = App(broker, topic, tmp_path)
    small = topic(1, max_message_bytes="20000")
    settings = app.settings.model_copy(
        update={"redrive": app.settings.redrive.model_copy(update={"topic": small})}
    )
    now = datetime.now(UTC)
    native = NativeDialect()
    for n, size in enumerate([10, 50_000, 10]):
        letter = sg.Letter(id=f"{n}" * 32, failure=FAILURE, version=VERSION, due=now)
        message = Message(value=b"x" * size, headers=tuple(native.headers(letter)))
        broker.produce(app.retry, [message])
    service = Service(settings=settings, trigger=500)
    query = service.start(spark, service.guard())
    try:
        until(
            lambda: (
                sum(broker.end_offsets(small).values()) == 2
                and sum(broker.end_offsets(app.dead).values()) == 1
            ),
            query,
        )
    finally:
        query.stop()
    (dead,) = broker.read_all(app.dead)
    assert (dead.header(f"{PREFIX}id"), len(dead.value or b"")) == (b"1" * 32, 50_000)


def test_a_service_that_cannot_work_does_not_start(
    broker: Broker, topic: MakeTopic, tmp_path: Path
) -> None:
    """A topic that is missing is an error before Spark is asked for anything."""
    app = App(broker, topic, tmp_path)
    lost = app.settings.redrive.model_copy(update={"topic": "nowhere"})
    service = Service(settings=app.settings.model_copy(update={"redrive": lost}))
    with pytest.raises(ConfigError, match=r"redrive\.topic: the topic 'nowhere' does not exist"):
        service.run(lambda: pytest.fail("no session is needed"))


def test_a_frame_that_cannot_come_back_is_refused(
    spark: SparkSession, broker: Broker, topic: MakeTopic, tmp_path: Path
) -> None:
    """P1: what would come back without its headers, twice or not at all is refused at build."""
    app = App(broker, topic, tmp_path)
    flow = app.guard.flow(decode, charge, name="orders")
    frame = (
        spark.read.format("kafka")
        .option("kafka.bootstrap.servers", broker.servers)
        .option("subscribe", app.input)
    )
    with pytest.raises(sg.StageError, match="set the option includeHeaders to true"):
        frame.load().transform(flow)
    with pytest.raises(sg.StageError, match="not read from there"):
        spark.sql("select cast('1' as binary) value").transform(flow)

    @sg.flat_map(name="charge", returns="id long", partial=True)
    def split(number: int) -> list[int]:
        return [number]

    parts = app.guard.flow(decode, split, name="parts")
    with pytest.raises(sg.StageError, match="would come twice"):
        frame.option("includeHeaders", "true").load().transform(parts)
