"""A batch whose bad rows are looked for, and what comes in the middle of it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import sparkguard as sg
from tests.spark.made import (
    build,
    committed,
    decode,
    guard,
    kafka_stream,
    price,
    stream,
)
from tests.spark.target import ISOLATE, Target, exact, left_over, own, prices, started


def away(_: sg.SubBatch) -> None:
    """The database does not answer."""
    raise ConnectionError("the database is away")


class Crash(BaseException):
    """It ends the query, and nothing is decided about the rows."""


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_crash_in_the_middle(spark: SparkSession, tmp_path: Path, when: str) -> None:
    """P1, P4, P6: a new process goes on by the journal, and writes no row with other rows."""
    target = Target(tmp_path)
    lines = prices(100, {5, 60})
    steps = iter(range(1_000))

    def crash(_: sg.SubBatch) -> None:
        if next(steps) in {3, 6}:
            raise Crash

    setattr(target, when, crash)
    made, query = started(spark, tmp_path, target, lines)
    for _ in range(2):
        with pytest.raises(sg.StageFailedError) as caught:
            made.run(query)
        assert caught.value.facts["cause"] == "fatal"
        assert committed(tmp_path) == []
        made, query = started(spark, tmp_path, target, lines)
    made.run(query)

    assert committed(tmp_path) == [0]
    assert set(target.ids()) == set(range(100)) - {5, 60}
    assert {json.loads(it.record.value or b"")["id"] for it in own(tmp_path)} == {5, 60}
    assert len(own(tmp_path)) == 2
    parts = {(part.start, part.stop) for part in target.written()}
    rows = [row for part in parts for row in range(*part)]
    assert len(rows) == len(set(rows)) == 98
    # A range whose end the crash took away is written again, under the same name.
    assert len(target.written()) - len(parts) == (2 if when == "after" else 0)
    names = {sub.transaction for sub, how in target.calls if how == "written"}
    assert len(names) == len(parts)
    # The whole batch was called once: the flow has not run again, and is counted all the same.
    assert sum(sub.whole for sub, _ in target.calls) == 1
    exact(made, 100, 2)
    account = made.ledger.total("orders")
    assert (account.records_in, account.records_out, account.balanced) == (100, 100, True)
    assert left_over(tmp_path) == []


def test_an_outage_in_the_middle(spark: SparkSession, tmp_path: Path) -> None:
    """P7, P14: it is tried again, then the query starts again, and the journal is not lost."""
    target = Target(tmp_path)
    steps = iter(range(1_000))

    def outage(_: sg.SubBatch) -> None:
        if next(steps) in {3, 6, 7}:
            raise ConnectionError("the database is away")

    target.before = outage
    made = guard(
        tmp_path,
        stages={"store": {**ISOLATE, "retry": {"max_attempts": 2, "backoff": {"initial": "1ms"}}}},
        restart={"backoff": {"initial": "10ms"}},
    )
    guarded = kafka_stream(spark, tmp_path, prices(100, {60})).transform(
        made.flow(decode, price, name="orders", carry=sg.ORIGIN)
    )
    stage = sg.foreach_batch(target.store, name="store")
    made.run(build(guarded, tmp_path, made.foreach_batch(stage)))

    assert set(target.ids()) == set(range(100)) - {60}
    assert len(own(tmp_path)) == 1
    assert sum(sub.whole for sub, _ in target.calls) == 1
    assert len(target.written()) == len({str(part) for part in target.written()})
    exact(made, 100, 1)
    assert left_over(tmp_path) == []


def test_a_stop_in_the_middle(spark: SparkSession, tmp_path: Path) -> None:
    """P12: a stop ends the batch between two calls; the next start goes on by the journal."""
    target = Target(tmp_path)
    lines = prices(200, {20, 150, 151})
    made, query = started(spark, tmp_path, target, lines)

    def stop(sub: sg.SubBatch) -> None:
        if not sub.whole:
            made._stop.request("a test")

    target.after = stop
    made.run(query)

    first = len(target.calls)
    assert committed(tmp_path) == []
    assert target.calls[-1][1] == "written"
    assert len(target.written()) == 1
    assert left_over(tmp_path) != []

    target.after = lambda _: None
    made, query = started(spark, tmp_path, target, lines)
    made.run(query)

    assert not target.calls[first][0].whole
    rows = [row for part in target.written() for row in part]
    assert len(rows) == len(set(rows)) == 197
    assert len(own(tmp_path)) == 3
    exact(made, 200, 3)
    assert left_over(tmp_path) == []


def test_a_batch_that_was_planned_anew(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """P1: a journal holds for the records that the batch was planned to read, and no others."""
    target = Target(tmp_path)
    steps = iter(range(1_000))

    def crash(_: sg.SubBatch) -> None:
        if next(steps) == 3:
            raise Crash

    target.before = crash
    made, query = started(spark, tmp_path, target, prices(20, {3}))
    with pytest.raises(sg.StageFailedError):
        made.run(query)
    # What an operator does to a query that is stuck; then Spark plans the batch from what is there.
    for folder in ("offsets", "sources"):
        shutil.rmtree(tmp_path / "checkpoint" / folder)
    made, query = started(spark, tmp_path, target, prices(60, {3}))
    made.run(query)

    assert committed(tmp_path) == [0]
    assert set(target.ids()) == set(range(60)) - {3}
    assert "planned anew" in caplog.text
    exact(made, 60, 1)
    assert left_over(tmp_path) == []


@pytest.mark.parametrize("version", ["1", "2"])
def test_a_replay_behind_a_stateful_operator(
    spark: SparkSession, tmp_path: Path, version: str
) -> None:
    """P1: Spark commits no batch whose operators it has not heard of, so they run once more."""
    provider = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    conf = {
        "spark.sql.streaming.stateStore.providerClass": provider,
        "spark.sql.streaming.stateStore.checkpointFormatVersion": version,
    }
    for name, value in conf.items():
        spark.conf.set(name, value)
    found: dict[int, int] = {}
    calls = iter(range(1_000))

    @sg.foreach_batch
    def store(batch: DataFrame, batch_id: int) -> None:
        if next(calls) == 3:
            raise Crash
        rows = [(row.k, row["count"]) for row in batch.collect()]
        if any(k == 3 for k, _ in rows):
            raise ValueError("refused")
        found.update(rows)

    try:
        for batches in (1, 1, 2):
            made = guard(tmp_path, stages={"store": ISOLATE})
            lines = [[str(n) for n in range(100)]] * batches
            counted = (
                stream(spark, tmp_path, *lines)
                .groupBy((f.col("value").cast("int") % 10).alias("k"))
                .count()
            )
            query = build(counted, tmp_path, made.foreach_batch(store), mode="update")
            if not found:
                with pytest.raises(sg.StageFailedError):
                    made.run(query)
                found[0] = 0
            else:
                made.run(query)
    finally:
        for name in conf:
            spark.conf.unset(name)
    assert committed(tmp_path) == [0, 1]
    assert found == {k: 20 for k in range(10) if k != 3}
    assert [json.loads(it.record.value or b"") for it in own(tmp_path)] == [
        {"k": 3, "count": 10},
        {"k": 3, "count": 20},
    ]


def test_equal_rows_of_two_batches(spark: SparkSession, tmp_path: Path) -> None:
    """P3, P6: in batches of their own, they are two letters too."""
    made = guard(tmp_path, stages={"store": {**ISOLATE}})
    batches = [prices(20, {7}), prices(20, {7})]
    guarded = stream(spark, tmp_path, *batches).transform(made.flow(decode, price, name="orders"))
    stage = sg.foreach_batch(Target(tmp_path).store, name="store")

    made.run(build(guarded, tmp_path, made.foreach_batch(stage)))

    assert len({letter.id for letter in own(tmp_path)}) == len(own(tmp_path)) == 2
    exact(made, 40, 2)


def test_one_stage_in_two_queries(spark: SparkSession, tmp_path: Path) -> None:
    """What either of them has set aside is removed after its commit."""
    made = guard(tmp_path, stages={"store": {**ISOLATE}})
    flow = made.flow(decode, price, name="orders", carry=sg.ORIGIN)
    queries = []
    for number in range(2):
        folder = tmp_path / str(number)
        folder.mkdir()
        stage = sg.foreach_batch(Target(folder).store, name="store")
        guarded = kafka_stream(spark, folder, prices(20, {7})).transform(flow)
        queries.append(build(guarded, folder, made.foreach_batch(stage)))
    made.run(*queries)
    assert not list(tmp_path.rglob("_sparkguard/**/*.parquet"))
    assert not list((tmp_path / "state" / "isolation").glob("*"))


def test_sinks_are_looked_at_first(spark: SparkSession, tmp_path: Path) -> None:
    """P16: letters that could not be stored are no surprise of the first bad row."""
    sink = {"type": "kafka", "bootstrap_servers": "127.0.0.1:1", "topic": "dead"}
    made = guard(tmp_path, sinks={"default": sink}, stages={"store": {**ISOLATE}})
    called: list[int] = []

    @sg.foreach_batch
    def store(batch: DataFrame, batch_id: int) -> None:
        called.append(batch_id)

    with pytest.raises(sg.SinkError, match="no broker answers"):
        made.foreach_batch(store)(spark.range(4), 0)
    assert not called
