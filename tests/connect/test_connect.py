"""Spark Connect: ids of what came out and of the letters, and the ledger as the state has it."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import sparkguard as sg
from sparkguard import plugins
from sparkguard.core.watch import BatchFinished
from sparkguard.driver.state import State
from sparkguard.errors import UnsupportedError
from tests.conftest import MakeTopic
from tests.spark.made import (
    Order,
    Priced,
    build,
    committed,
    decode,
    frame,
    guard,
    kafka_stream,
    letters,
    orders,
    price,
    write,
)
from tests.support.kafka import Broker, Message

NO_BUDGET: dict[str, Any] = {"defaults": {"budget": {"max_ratio": 1}}}


def batches(*bad: int) -> list[list[str]]:
    """Two micro-batches of ten orders, of which these do not parse."""
    lines = orders(20, bad=bad)
    return [lines[:10], lines[10:]]


def out(spark: SparkSession, folder: Path) -> list[int]:
    """The ids that came out, sorted; each as often as it did."""
    return sorted(row.id for row in spark.read.parquet(str(folder / "out" / "*")).collect())


def without(*ids: int, count: int = 20) -> list[int]:
    """All ids but these."""
    return [number for number in range(count) if number not in ids]


def counts(folder: Path, flow: str = "orders") -> list[tuple[int | None, int, int, int]]:
    """By batch: in, out and dead-lettered, as any process reads it from the state."""
    found = guard(folder).ledger.batches(flow)
    assert all(account.balanced for account in found)
    return sorted(
        (one.batch_id, one.records_in, one.records_out, one.total("dead_lettered")) for one in found
    )


def left(folder: Path) -> list[str]:
    """The entries that are in no account yet."""
    return [file.name for file in (folder / "state" / "entries").glob("*/*.json")]


def once(mark: Path) -> Callable[[], bool]:
    """Whether it is called for the first time, in whatever process."""

    def first() -> bool:
        try:
            mark.touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    return first


def test_batch_frame(spark: SparkSession, tmp_path: Path) -> None:
    """P1, P4: a batch job's letters are files; its records count once, however often it runs."""
    made = guard(tmp_path, **NO_BUDGET)
    flow = made.flow(decode, price, name="orders")
    guarded = frame(spark, orders(20, bad=[3], negative=[5, 7]), 2).transform(flow)
    assert sorted(row.id for row in guarded.collect()) == without(3, 5, 7)
    assert guarded.count() == 17
    assert len(left(tmp_path)) == 4
    assert made.ledger.total("orders").records_in == 20
    assert left(tmp_path) == []
    assert counts(tmp_path) == [(0, 20, 17, 3)]
    found = letters(tmp_path)
    assert sorted(letter.failure.stage for letter in found) == ["decode", "price", "price"]
    assert {letter.record.value for letter in found} == {
        b'{"id": 3, ',
        b'{"id":5,"amount":-1.0}',
        b'{"id":7,"amount":-1.0}',
    }


def test_foreach_batch(spark: SparkSession, tmp_path: Path) -> None:
    """P1, P2, P4: a stream into a guarded batch function; the state has the exact account."""
    made = guard(tmp_path, **NO_BUDGET)
    guarded = kafka_stream(spark, tmp_path, *batches(1, 12, 13)).transform(
        made.flow(decode, price, name="orders")
    )
    made.run(build(guarded, tmp_path, made.foreach_batch(write(tmp_path))))
    assert out(spark, tmp_path) == without(1, 12, 13)
    assert counts(tmp_path) == [(0, 10, 9, 1), (1, 10, 8, 2)]
    assert left(tmp_path) == []
    found = {(letter.record.coordinates, letter.failure.batch_id) for letter in letters(tmp_path)}
    assert found == {("orders[1]@0", 0), ("orders[0]@11", 1), ("orders[1]@11", 1)}


def test_retries(spark: SparkSession, tmp_path: Path) -> None:
    """P4, P7: an outage in a stage and one in the batch function pass, and nothing counts twice."""
    in_stage, in_batch, inner = once(tmp_path / "a"), once(tmp_path / "b"), write(tmp_path)

    @sg.map
    def ask(order: Order) -> Order:
        if order.id == 4 and in_stage():
            raise ConnectionError("the service is away")
        return order

    def store(batch: DataFrame, batch_id: int) -> None:
        inner(batch, batch_id)
        if batch_id == 1 and in_batch():
            raise ConnectionError("the database is away")

    made = guard(tmp_path, **NO_BUDGET)
    flow = made.flow(decode, ask, price, name="orders")
    guarded = kafka_stream(spark, tmp_path, *batches(12)).transform(flow)
    made.run(build(guarded, tmp_path, made.foreach_batch(store)))
    assert out(spark, tmp_path) == without(12)
    assert counts(tmp_path) == [(0, 10, 10, 0), (1, 10, 9, 1)]
    totals = guard(tmp_path).ledger.totals()
    assert totals["orders"].stages["ask"]["retries"] == 1
    assert totals["store"].stages["store"]["retries"] == 1
    assert len(letters(tmp_path)) == 1


def test_fail(spark: SparkSession, tmp_path: Path) -> None:
    """P1: a handler that fails stops the query, which says why; its batch is not committed."""
    made = guard(tmp_path, stages={"price": {"handler": "fail"}})
    source = kafka_stream(spark, tmp_path, orders(10), orders(10, negative=[2]))
    guarded = source.transform(made.flow(decode, price, name="orders"))
    with pytest.raises(sg.StageFailedError, match=r"at orders\[0\]@11 .*order 2 has a negative"):
        made.run(build(guarded, tmp_path, made.foreach_batch(write(tmp_path))))
    assert committed(tmp_path) == [0]


def test_swallowed(spark: SparkSession, tmp_path: Path) -> None:
    """P1: a batch function that swallows a flow's failure does not get its batch committed."""

    def store(batch: DataFrame, batch_id: int) -> None:
        try:
            batch.count()
        except Exception:
            return

    made = guard(tmp_path, stages={"decode": {"handler": "fail"}})
    guarded = kafka_stream(spark, tmp_path, *batches(1)).transform(made.flow(decode, name="orders"))
    with pytest.raises(sg.StageFailedError, match=r"'decode' of flow 'orders' failed"):
        made.run(build(guarded, tmp_path, made.foreach_batch(store)))
    assert committed(tmp_path) == []


def test_restart(spark: SparkSession, tmp_path: Path) -> None:
    """P4, P14: the supervisor reads a worker's decision from the text, and starts again."""
    first = once(tmp_path / "mark")

    @sg.map
    def flaky(order: Order) -> Order:
        if order.id == 15 and first():
            raise ValueError("only once")
        return order

    settings = {"stages": {"flaky": {"handler": "restart"}}}
    made = guard(tmp_path, restart={"backoff": {"initial": "10ms"}}, **settings)
    flow = made.flow(decode, flaky, price, name="orders")
    starts = []

    def start() -> Any:
        starts.append(1)
        source = kafka_stream(spark, tmp_path, *batches())
        return build(source.transform(flow), tmp_path, made.foreach_batch(write(tmp_path)))()

    made.run(start)
    assert len(starts) == 2
    assert out(spark, tmp_path) == without()
    assert counts(tmp_path) == [(0, 10, 10, 0), (1, 10, 10, 0)]
    assert left(tmp_path) == []


def test_plain_sink(spark: SparkSession, tmp_path: Path) -> None:
    """P4: behind another sink the ledger is exact too; `guard.run` settles batch after batch."""
    made = guard(tmp_path, **NO_BUDGET)
    flow = made.flow(decode, price, name="orders")

    def start() -> Any:
        writer = kafka_stream(spark, tmp_path, *batches(1, 12)).transform(flow).writeStream
        checkpoint = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        return checkpoint.trigger(availableNow=True).format("noop").start()

    made.run(start)
    assert counts(tmp_path) == [(0, 10, 9, 1), (1, 10, 9, 1)]
    assert left(tmp_path) == []


def test_two_queries(spark: SparkSession, tmp_path: Path) -> None:
    """P4: two queries in one session, each named like its stage, have each their own account."""
    made = guard(tmp_path, **NO_BUDGET)

    def start(name: str, *bad: int) -> Callable[[], Any]:
        folder = tmp_path / name
        folder.mkdir()
        inner = write(folder)
        partner = State(str(tmp_path / "met"))

        @sg.foreach_batch(name=name)
        def store(batch: DataFrame, batch_id: int) -> None:
            # Neither ends before the other runs, so both are there to be confused.
            partner.store(name, {})
            while not (partner.load("one") == partner.load("two") == {}):
                pass
            inner(batch, batch_id)

        flow = made.flow(decode, name=f"flow-{name}")
        guarded = kafka_stream(spark, folder, *batches(*bad)).transform(flow)
        writer = guarded.writeStream.foreachBatch(made.foreach_batch(store)).queryName(name)
        checkpoint = writer.option("checkpointLocation", str(folder / "checkpoint"))
        return checkpoint.trigger(availableNow=True).start

    made.run(start("one", 3), start("two", 4, 14))
    assert counts(tmp_path, "flow-one") == [(0, 10, 9, 1), (1, 10, 10, 0)]
    assert counts(tmp_path, "flow-two") == [(0, 10, 9, 1), (1, 10, 9, 1)]
    assert out(spark, tmp_path / "two") == without(4, 14)


def test_stop(spark: SparkSession, tmp_path: Path) -> None:
    """P12: the stop marker ends a query between two batches, and no record is in between."""
    made = guard(tmp_path)
    state = str(tmp_path / "state")

    def store(batch: DataFrame, batch_id: int) -> None:
        assert batch.count() == 5
        if batch_id == 2:
            State(state).request_stop()

    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 5).load()
    lines = source.selectExpr("concat('{\"id\": ', value, '}') value")
    guarded = lines.transform(made.flow(decode, name="orders"))
    writer = guarded.writeStream.foreachBatch(made.foreach_batch(store))
    made.run(writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start)
    done = committed(tmp_path)
    assert done[:3] == [0, 1, 2]
    assert [number for number, *_ in counts(tmp_path)] == done


def test_stop_between_tries(spark: SparkSession, tmp_path: Path) -> None:
    """P7, P12: a wait before the next try ends when a stop is asked for, and that is no failure."""
    made = guard(
        tmp_path, stages={"store": {"retry": {"backoff": {"initial": "20s", "max": "20s"}}}}
    )
    state = str(tmp_path / "state")

    def store(batch: DataFrame, batch_id: int) -> None:
        assert batch.count() == 10
        if batch_id == 1:
            State(state).request_stop()
            raise ConnectionError("the database is away")

    guarded = kafka_stream(spark, tmp_path, *batches()).transform(made.flow(decode, name="orders"))
    made.run(build(guarded, tmp_path, made.foreach_batch(store)))
    assert committed(tmp_path) == [0]


class Killer:
    """A plugin that kills the process which has stored the account of batch 1, once."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    @sg.hookimpl
    def on_batch_finished(self, batch: BatchFinished) -> None:
        if batch.batch_id == 1 and once(self.mark)():
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("after", [False, True], ids=["in the batch", "after the account"])
def test_killed(spark: SparkSession, tmp_path: Path, after: bool) -> None:
    """P1, P4, P14: the process of the batch function is killed: a restart, and each row once."""
    mark, inner = tmp_path / "mark", write(tmp_path)
    members = plugins.load([("killer", Killer(mark))] if after else [])
    made = sg.Guard(guard(tmp_path, **NO_BUDGET).settings, members=members)

    def store(batch: DataFrame, batch_id: int) -> None:
        inner(batch, batch_id)
        if batch_id == 1 and not after and once(mark)():
            os.kill(os.getpid(), signal.SIGKILL)

    flow = made.flow(decode, price, name="orders")
    guarded = kafka_stream(spark, tmp_path, *batches(1, 12)).transform(flow)
    start = build(guarded, tmp_path, made.foreach_batch(store))
    made.run(start)
    assert mark.exists()
    assert out(spark, tmp_path) == without(1, 12)
    assert counts(tmp_path) == [(0, 10, 9, 1), (1, 10, 9, 1)]
    assert left(tmp_path) == []
    assert len(letters(tmp_path)) == 2


def test_exit(spark: SparkSession, tmp_path: Path) -> None:
    """P11: a batch function that ends its process is a failure of its stage."""

    def store(batch: DataFrame, batch_id: int) -> None:
        raise SystemExit(3)

    made = guard(tmp_path)
    guarded = kafka_stream(spark, tmp_path, *batches()).transform(made.flow(decode, name="orders"))
    with pytest.raises(sg.StageFailedError, match=r"'store' failed .*fatal.* SystemExit"):
        made.run(build(guarded, tmp_path, made.foreach_batch(store)))


def test_kafka(spark: SparkSession, broker: Broker, topic: MakeTopic, tmp_path: Path) -> None:
    """P1, P4, P6: Kafka to Kafka by `produce`, letters in a topic; ids are compared."""
    names = [topic(2), topic(1), topic(1)]
    incoming, outgoing, dead = names
    broker.produce(incoming, [Message(value=line.encode()) for line in orders(50, bad=[7])])
    sink = {"type": "kafka", "bootstrap_servers": broker.servers, "topic": dead}
    made = guard(tmp_path, sinks={"default": sink}, **NO_BUDGET)
    flow = made.flow(decode, price, name="orders")
    source = spark.readStream.format("kafka").option("subscribe", incoming)
    source = source.option("kafka.bootstrap.servers", broker.servers)
    source = source.option("startingOffsets", "earliest").option("includeHeaders", value=True)
    to_kafka = made.produce(
        sg.produce(
            name="out",
            topic=outgoing,
            value=sg.Json(Priced),
            producer={"bootstrap.servers": broker.servers},
        )
    )

    def start() -> Any:
        writer = to_kafka.stream(source.load().transform(flow)).trigger(availableNow=True)
        return writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()

    made.run(start)
    sent = sorted(json.loads(message.value or b"")["id"] for message in broker.read_all(outgoing))
    assert sent == without(7, count=50)
    (letter,) = broker.read_all(dead)
    assert letter.value == b'{"id": 7, '
    assert counts(tmp_path) == [(0, 50, 49, 1)]
    assert counts(tmp_path, "out") == [(0, 49, 49, 0)]


def test_memory_sink(spark: SparkSession, tmp_path: Path) -> None:
    """The memory sink is refused when the flow is built, with what to take instead."""
    made = guard(tmp_path, sinks={"default": {"type": "memory"}})
    with pytest.raises(UnsupportedError, match=r"'default' .* use a sink of type file or kafka"):
        frame(spark, orders(1)).transform(made.flow(decode, name="orders"))
    with pytest.raises(UnsupportedError, match=r"'default' .* use a sink of type file or kafka"):
        made.foreach_batch(write(tmp_path))


def test_isolation(spark: SparkSession, tmp_path: Path) -> None:
    """`isolate` is refused, with what to do instead."""
    made = guard(tmp_path, stages={"store": {"isolate": True, "writes": "upsert"}})
    with pytest.raises(UnsupportedError, match=r"Set it to false, and let a flow in front"):
        made.foreach_batch(write(tmp_path))


def test_two_queries_without_names(spark: SparkSession, tmp_path: Path) -> None:
    """A batch that cannot be told from another query's is refused: its account could be wrong."""
    made = guard(tmp_path)
    idle = spark.readStream.format("rate").load().writeStream.format("noop")
    idle.option("checkpointLocation", str(tmp_path / "idle")).start()
    guarded = kafka_stream(spark, tmp_path, *batches()).transform(made.flow(decode, name="orders"))
    with pytest.raises(PySparkException, match=r"\.queryName\(\"store\"\)"):
        made.run(build(guarded, tmp_path, made.foreach_batch(write(tmp_path))))
    assert committed(tmp_path) == []
