"""produce over a real broker: ids and bytes of what arrived are compared, never counts alone."""

import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

import sparkguard as sg
from tests.conftest import MakeTopic
from tests.faults.producing import (
    BIG,
    MEGABYTES,
    ORDERS,
    arrived,
    counts,
    expected,
    letters,
    made,
    orders,
    out,
    with_a_big_one,
)
from tests.support.kafka import Broker, Message


@pytest.fixture
def guard(tmp_path: Path) -> sg.Guard:
    """A guard whose produce stage `out` dead-letters what Kafka refuses."""
    return made(tmp_path, out={"handler": "dead_letter", "budget": {"max_ratio": 1}})


def test_batch_frame(
    spark: SparkSession, broker: Broker, topic: MakeTopic, guard: sg.Guard
) -> None:
    """P1, P4: every row of a batch frame is in the topic, byte for byte, and in the ledger."""
    name = topic(3)
    guard.produce(out(broker, topic=name)).write(orders(spark))
    assert arrived(broker, name) == expected()
    assert counts(guard) == (ORDERS, ORDERS, 0, 0)


@pytest.mark.parametrize(
    ("size", "config"),
    # librdkafka sends what is larger than a megabyte by itself, the other one among its neighbours.
    [(MEGABYTES, {}), (300_000, {"max_message_bytes": "200000"})],
)
def test_one_too_large(
    spark: SparkSession,
    broker: Broker,
    topic: MakeTopic,
    guard: sg.Guard,
    tmp_path: Path,
    size: int,
    config: dict[str, str],
) -> None:
    """P6: the large record is the letter; no neighbour in its batch is lost, none comes twice."""
    name = topic(1, **config)
    stage = out(broker, topic=name, producer={"linger.ms": 200})
    guard.produce(stage).write(with_a_big_one(orders(spark), size))
    assert arrived(broker, name) == expected(BIG)
    ((stage, category, cause, kind, payload, value),) = letters(
        tmp_path, "stage, category, cause, exception_type, payload, value"
    )
    assert (stage, category, cause, payload) == ("out", "production", "poison", "row")
    assert kind == "sparkguard.errors.TooLargeError"
    assert json.loads(value) == {"id": BIG, "note": "x" * size}
    assert counts(guard) == (ORDERS, ORDERS - 1, 0, 1)


def test_refused_among_many(
    spark: SparkSession, broker: Broker, topic: MakeTopic, guard: sg.Guard, tmp_path: Path
) -> None:
    """P6: of more rows than are kept at once, the refused ones are still those of the letters."""
    name, count, large = topic(1), 250_000, [3, 99_999, 100_001, 249_998]
    frame = spark.range(count, numPartitions=1).select(
        "id", f.when(f.col("id").isin(large), f.repeat(f.lit("x"), MEGABYTES)).alias("note")
    )
    guard.produce(out(broker, topic=name)).write(frame)
    assert counts(guard) == (count, count - 4, 0, 4)
    assert arrived(broker, name).keys() == {b"%d" % n for n in set(range(count)) - set(large)}
    found = letters(tmp_path, "cast(json_extract(decode(value), '$.id') as bigint), key")
    assert [row for row, _ in found] == large


def test_neighbours_of_a_letter_are_judged_alone(
    spark: SparkSession, broker: Broker, topic: MakeTopic, guard: sg.Guard, tmp_path: Path
) -> None:
    """P6: a compacted topic refuses a record without a key, and with it its whole batch."""
    name = topic(1, cleanup_policy="compact")
    frame = orders(spark).withColumn("key", f.when(f.col("id") != 7, f.col("id").cast("string")))
    stage = out(broker, topic=name, key="key", value=("note", sg.Text()))
    guard.produce(stage).write(frame)
    assert arrived(broker, name) == {b"%d" % n: b"note %d" % n for n in range(ORDERS) if n != 7}
    ((value, kind),) = letters(tmp_path, "value, exception_type")
    assert json.loads(value) == {"id": 7, "note": "note 7", "key": None}
    assert kind == "sparkguard.errors.ProduceError"
    assert counts(guard) == (ORDERS, ORDERS - 1, 0, 1)


def test_what_cannot_be_written(
    spark: SparkSession, broker: Broker, topic: MakeTopic, guard: sg.Guard, tmp_path: Path
) -> None:
    """P6: NaN, text that is no UTF-8 and a function that raises are one letter each."""
    name = topic(2)

    def tag(row: dict[str, Any]) -> str:
        if row["id"] == 3:
            raise ValueError("no tag for 3")
        return f"tag {row['id']}"

    frame = spark.range(100, numPartitions=1).selectExpr(
        "id",
        "case when id = 1 then double('NaN') else 0.5 end as price",
        "case when id = 2 then cast(X'fffe' as string) else 'text' end as note",
    )
    guard.produce(out(broker, topic=name, headers={"tag": tag, "v": b"1"})).write(frame)
    found = arrived(broker, name)
    assert found == {
        b"%d" % n: b'{"id":%d,"price":0.5,"note":"text"}' % n for n in range(100) if n > 3 or not n
    }
    assert {m.headers for m in broker.read_all(name)} == {
        (("tag", b"tag %d" % n), ("v", b"1")) for n in range(100) if n > 3 or not n
    }
    stored = letters(tmp_path, "value, message")
    assert [json.loads(value)["id"] for value, _ in stored] == [1, 2, 3]
    messages = [message for _, message in stored]
    assert "JSON has no NaN" in messages[0]
    assert "'note'" in messages[1]
    assert messages[2] == "no tag for 3"
    assert counts(guard) == (100, 97, 0, 3)


def test_topic_and_partition_of_the_row(
    spark: SparkSession, broker: Broker, topic: MakeTopic, guard: sg.Guard, tmp_path: Path
) -> None:
    """P6: rows that name a topic or partition that is not there leave; the others arrive."""
    even, odd = topic(2), topic(2)
    frame = spark.range(100).selectExpr(
        "id",
        f"case id when 10 then 'nowhere' when 11 then 'no name!' when 12 then null "
        f"else if(id % 2 = 0, '{even}', '{odd}') end as to",
        "case id when 20 then 99 when 21 then -5 when 22 then null else 1 end as place",
    )
    guard.produce(out(broker, topic_column="to", partition="place", value=("id", sg.Text()))).write(
        frame
    )
    bad = {10, 11, 12, 20, 21}
    for name, rest in ((even, 0), (odd, 1)):
        messages = broker.read_all(name)
        good = [n for n in range(100) if n % 2 == rest and n not in bad]
        assert sorted(int(m.value or b"") for m in messages) == good
        assert {m.partition for m in messages if m.value != b"22"} == {1}
    stored = letters(tmp_path, "decode(value), cause, exception_type")
    assert sorted(json.loads(value)["id"] for value, _, _ in stored) == sorted(bad)
    assert {facts[1:] for facts in stored} == {("poison", "sparkguard.errors.ProduceError")}
    assert counts(guard) == (100, 95, 0, 5)


def test_keys_go_where_java_sends_them(
    spark: SparkSession, broker: Broker, topic: MakeTopic, guard: sg.Guard
) -> None:
    """Spark's own sink, which is Java's producer, and ours choose the same partitions."""
    ours, java = topic(7), topic(7)
    frame = spark.range(500).selectExpr("concat('k', id) as key", "cast(id as string) as value")
    (
        frame.write.format("kafka")
        .option("kafka.bootstrap.servers", broker.servers)
        .option("topic", java)
        .save()
    )
    guard.produce(out(broker, topic=ours, key="key", value="value")).write(frame)
    places = [{m.key: m.partition for m in broker.read_all(name)} for name in (ours, java)]
    assert places[0] == places[1]
    assert len(places[0]) == 500


def test_a_refused_row_fails_the_job(
    spark: SparkSession, broker: Broker, topic: MakeTopic, tmp_path: Path
) -> None:
    """The default for production is `fail`; the sentence names the stage and the reason."""
    guard = made(tmp_path)
    with pytest.raises(sg.StageFailedError, match=r"Stage 'out'.*too large for topic") as caught:
        guard.produce(out(broker, topic=topic(1))).write(with_a_big_one(orders(spark)))
    assert caught.value.action == "fail"
    assert letters(tmp_path, "value") == []


def test_by_exception(
    spark: SparkSession, broker: Broker, topic: MakeTopic, tmp_path: Path
) -> None:
    """Too large is skipped, as the settings say; anything else would fail."""
    skip = {"sparkguard.errors.TooLargeError": "log_and_continue"}
    guard, name = made(tmp_path, out={"by_exception": skip}), topic(1)
    guard.produce(out(broker, topic=name)).write(with_a_big_one(orders(spark)))
    assert arrived(broker, name) == expected(BIG)
    assert counts(guard) == (ORDERS, ORDERS - 1, 1, 0)


class Order(msgspec.Struct):
    """What the input holds."""

    id: int
    note: str


decode = sg.deserialize(sg.Json(Order), name="decode")


@sg.map
def same(order: Order) -> Order:
    """The order itself."""
    return order


def sent(count: int, start: int = 0) -> Iterator[Message]:
    """Orders as they lie in the input; the one numbered `BIG` is 900 kB."""
    for n in range(start, start + count):
        note = "x" * 900_000 if n == BIG else f"note {n}"
        yield Message(key=b"%d" % n, value=json.dumps({"id": n, "note": note}).encode())


def source(spark: SparkSession, broker: Broker, topic: str, most: int) -> DataFrame:
    """A topic as a stream, so many records a batch."""
    return (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", broker.servers)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("includeHeaders", "true")
        .option("maxOffsetsPerTrigger", most)
        .load()
    )


def test_stream_with_origin(
    spark: SparkSession, broker: Broker, topic: MakeTopic, guard: sg.Guard, tmp_path: Path
) -> None:
    """P4, P6: a refused row's letter knows its record; accounts are stored before the commit."""
    names = {"in": topic(2), "out": topic(3, max_message_bytes="100000")}
    broker.produce(names["in"], sent(ORDERS))
    flow = guard.flow(decode, same, name="orders", carry=sg.ORIGIN)
    production = guard.produce(out(broker, topic=names["out"]))

    def build() -> StreamingQuery:
        frame = source(spark, broker, names["in"], 500).transform(flow)
        return (
            production.stream(frame)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )

    guard.run(build)

    assert arrived(broker, names["out"]) == expected(BIG)
    (original,) = [m for m in broker.read_all(names["in"]) if m.key == b"%d" % BIG]
    ((value, *place),) = letters(tmp_path, 'value, topic, partition, "offset"')
    assert json.loads(value) == {"id": BIG, "note": "x" * 900_000}
    assert place == [names["in"], original.partition, original.offset]
    assert counts(guard) == (ORDERS, ORDERS - 1, 0, 1)
    assert guard.ledger.total("orders").records_out == ORDERS
    assert sum(batch.records_in for batch in guard.ledger.batches("out")) == ORDERS


def test_stopped_and_started_again(
    spark: SparkSession, broker: Broker, topic: MakeTopic, guard: sg.Guard, tmp_path: Path
) -> None:
    """P1, P4: a query that is stopped and started again sends every record and counts it once."""
    names = {"in": topic(2), "out": topic(2)}
    broker.produce(names["in"], (m for m in sent(ORDERS) if m.key != b"%d" % BIG))
    frame = source(spark, broker, names["in"], 200)
    production = guard.produce(
        out(broker, topic=names["out"], key="key", value="value", headers="headers")
    )

    def build(**trigger: Any) -> StreamingQuery:
        return (
            production.stream(frame)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(**trigger)
            .start()
        )

    query = build(processingTime="0 seconds")
    until = time.monotonic() + 60
    while query.lastProgress is None and time.monotonic() < until:
        query.awaitTermination(0.05)  # type: ignore[arg-type]  # Spark takes fractions
    query.stop()
    before = len(broker.read_all(names["out"]))
    assert before > 0
    build(availableNow=True).awaitTermination(60)

    given = {m.key: m.value for m in broker.read_all(names["in"])}
    assert {m.key: m.value for m in broker.read_all(names["out"])} == given
    assert counts(guard) == (ORDERS - 1, ORDERS - 1, 0, 0)


@pytest.mark.parametrize(
    ("options", "kind", "sentence"),
    [
        ({"topic": "missing"}, sg.ConfigError, "topic 'missing' does not exist at"),
        ({"topic": "t", "key": "ident"}, sg.StageError, "'ident', which the frame has not; it has"),
        ({"topic": "t", "key": "price"}, sg.StageError, "is double, no bytes or text"),
        ({"topic_column": "id"}, sg.StageError, "topics are names, and the column 'id' is bigint"),
        ({"topic": "t", "partition": "price"}, sg.StageError, "'price' is double"),
        ({"topic": "t", "headers": "price"}, sg.StageError, "headers are array<struct<"),
        ({"topic": "t", "producer": {"bootstrap.servers": "127.0.0.1:1"}}, sg.ProduceError, "no"),
        ({"topic": "t", "producer": {"lingr.ms": 5}}, sg.ConfigError, "No such configuration"),
    ],
)
def test_said_before_anything_is_sent(
    spark: SparkSession,
    broker: Broker,
    guard: sg.Guard,
    options: dict[str, Any],
    kind: type[Exception],
    sentence: str,
) -> None:
    """What cannot work is a sentence within seconds, before a row is sent."""
    frame = spark.range(1).selectExpr("id", "0.5d as price")
    begun = time.monotonic()
    with pytest.raises(kind, match=re.escape(sentence)):
        guard.produce(out(broker, **options)).write(frame)
    assert time.monotonic() - begun < 20


def test_a_stop_that_nobody_took_back(
    spark: SparkSession, broker: Broker, topic: MakeTopic, guard: sg.Guard
) -> None:
    """A stop lets what runs end: rows that are sent are not sent again for it."""
    name = topic(1)
    guard._state.request_stop()
    guard.produce(out(broker, topic=name)).write(orders(spark))
    assert arrived(broker, name) == expected()


def test_a_partition_that_came_later(
    spark: SparkSession, broker: Broker, topic: MakeTopic, guard: sg.Guard, tmp_path: Path
) -> None:
    """P6: a client may know too few partitions; it asks again before a row is refused for it."""
    name = topic(1)
    production = guard.produce(out(broker, topic=name, partition="p"))
    production.write(orders(spark, 4).withColumn("p", f.lit(0)))
    broker.add_partitions(name, 2)
    production.write(orders(spark, 8).where("id > 3").withColumn("p", f.col("id") % 3))
    assert {(m.key, m.partition) for m in broker.read_all(name)} == {
        *((b"%d" % n, 0) for n in (0, 1, 2, 3, 6)),
        *((b"%d" % n, 1) for n in (4, 7)),
    }
    assert counts(guard) == (8, 7, 0, 1)
    ((value,),) = letters(tmp_path, "value")
    assert json.loads(value)["id"] == 5


def test_a_frame_without_columns(
    spark: SparkSession, broker: Broker, topic: MakeTopic, guard: sg.Guard
) -> None:
    """Rows without columns are no messages, and are not dropped without a word."""
    production = guard.produce(out(broker, topic=topic(1), key=None))
    with pytest.raises(sg.StageError, match="no columns"):
        production.write(orders(spark).select())


def test_equal_rows_of_batches(
    spark: SparkSession, broker: Broker, topic: MakeTopic, guard: sg.Guard, tmp_path: Path
) -> None:
    """P3, P6: rows without coordinates that are equal, in two batches, are two letters."""
    (tmp_path / "in").mkdir()
    for number in range(2):
        path = tmp_path / "in" / f"{number}.txt"
        path.write_text("9\n")
        os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))
    frame = (
        spark.readStream.format("text")
        .option("maxFilesPerTrigger", 1)
        .load(str(tmp_path / "in"))
        .selectExpr("cast(value as int) as p", "1 as id")
    )
    production = guard.produce(out(broker, topic=topic(1), partition="p"))
    guard.run(
        lambda: (
            production.stream(frame)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
    )
    assert counts(guard) == (2, 0, 0, 2)
    assert letters(tmp_path, "count(distinct id)") == [(2,)]


def test_headers_of_the_neighbours(
    spark: SparkSession, broker: Broker, topic: MakeTopic, guard: sg.Guard
) -> None:
    """P6: what is sent again alone is sent as it was, headers included."""
    name = topic(1, max_message_bytes="200000")
    stage = out(broker, topic=name, producer={"linger.ms": 200}, headers={"v": b"1"})
    guard.produce(stage).write(with_a_big_one(orders(spark), 300_000))
    assert counts(guard) == (ORDERS, ORDERS - 1, 0, 1)
    assert {message.headers for message in broker.read_all(name)} == {(("v", b"1"),)}
