"""How Spark evaluates a flow: twice, partly, in threads, in pieces; each record is counted once."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import sparkguard as sg
from tests.spark.made import (
    ROW,
    Order,
    Priced,
    build,
    committed,
    decode,
    frame,
    guard,
    kafka_rows,
    kafka_stream,
    letters,
    orders,
    price,
    stream,
    write,
)

Way = Callable[[DataFrame, str], None]
BATCH = orders(40, bad=[3, 17], negative=[8])
"""A batch of 40 records: 37 are good, two do not parse, one breaks the rule."""


def exact(account: sg.Account, times: int = 1) -> None:
    """The account has each record of so many batches once."""
    assert account.balanced
    assert (account.records_in, account.records_out) == (40 * times, 37 * times)
    assert account.stages["decode"]["dead_lettered"] == 2 * times
    assert account.stages["price"]["dead_lettered"] == 1 * times


# --- several evaluations of a batch ---------------------------------------------------------------


def count_then_write(batch: DataFrame, out: str) -> None:
    """Evaluate it twice."""
    assert batch.count() == 37
    batch.write.parquet(out)


def parts_then_write(batch: DataFrame, out: str) -> None:
    """Evaluate parts of it, and then all."""
    assert batch.first() is not None
    assert not batch.isEmpty()
    assert batch.limit(2).count() == 2
    batch.write.parquet(out)


def write_then_take(batch: DataFrame, out: str) -> None:
    """Evaluate all of it, and then a part: it must not stand for the batch."""
    batch.write.parquet(out)
    assert len(batch.take(1)) == 1


def halves(batch: DataFrame, out: str) -> None:
    """Two writes with filters: each evaluates all of it."""
    batch.filter("id < 20").write.parquet(f"{out}/low")
    batch.filter("id >= 20").write.parquet(f"{out}/high")


def in_threads(batch: DataFrame, out: str) -> None:
    """Threads of the user's own do not inherit what tells batch and query."""
    halves = [
        threading.Thread(target=batch.filter(rule).write.parquet, args=(f"{out}/{number}",))
        for number, rule in enumerate(["id < 20", "id >= 20"])
    ]
    for one in halves:
        one.start()
    for one in halves:
        one.join()


def only_in_a_thread(batch: DataFrame, out: str) -> None:
    """Nothing of it is evaluated on the query's own thread."""
    thread = threading.Thread(target=batch.write.parquet, args=(out,))
    thread.start()
    thread.join()


def coalesced(batch: DataFrame, out: str) -> None:
    """One task evaluates several partitions of the flow."""
    batch.coalesce(1).write.parquet(out)


def joined(batch: DataFrame, out: str) -> None:
    """The batch with itself."""
    batch.join(batch.select("id").distinct(), "id").write.parquet(out)


EVALUATIONS = [
    count_then_write,
    parts_then_write,
    write_then_take,
    halves,
    in_threads,
    only_in_a_thread,
    coalesced,
    joined,
]


def each_its_way(ways: list[Way], out: Path) -> Callable[[DataFrame, int], None]:
    """A batch function that evaluates each batch in another way."""
    folder = str(out)

    def store(batch: DataFrame, batch_id: int) -> None:
        ways[batch_id](batch, f"{folder}/{batch_id}")

    return store


@pytest.mark.parametrize(
    ("source", "ways"),
    [(kafka_stream, EVALUATIONS), (stream, [count_then_write, in_threads, coalesced, joined])],
    ids=["offsets", "files"],
)
def test_each_record_is_counted_once(
    spark: SparkSession, tmp_path: Path, source: Callable[..., DataFrame], ways: list[Way]
) -> None:
    """P3, P4, P11: however a batch is evaluated, account and letters have each record once."""
    made = guard(tmp_path)
    guarded = source(spark, tmp_path, *[BATCH] * len(ways)).transform(
        made.flow(decode, price, name="orders")
    )

    made.run(build(guarded, tmp_path, made.foreach_batch(each_its_way(ways, tmp_path / "out"))))

    accounts = {account.batch_id: account for account in made.ledger.batches("orders")}
    assert sorted(key for key in accounts if key is not None) == list(range(len(ways)))
    for batch_id, way in enumerate(ways):
        exact(accounts[batch_id])
        out = ds.dataset([*map(str, (tmp_path / f"out/{batch_id}").rglob("*.parquet"))])
        assert out.count_rows() == 37, way.__name__
    assert len(letters(tmp_path)) == 3 * len(ways)


def test_nothing_but_a_part(spark: SparkSession, tmp_path: Path) -> None:
    """P11: an evaluation that ends early is never counted: all of a partition, or nothing."""
    made = guard(tmp_path)
    values = spark.range(30_000, numPartitions=1).selectExpr("concat('{\"id\": ', id, '}') value")

    values.transform(made.flow(decode, name="orders")).limit(1).collect()

    assert made.ledger.total("orders").records_in in {0, 30_000}
    assert made.ledger.total("orders").balanced


# --- batch frames ---------------------------------------------------------------------------------


def rows(spark: SparkSession, values: list[str]) -> DataFrame:
    """A batch frame of Kafka's rows, two partitions of the topic."""
    found = [row for half in range(2) for row in kafka_rows(values[half::2], half)]
    return spark.createDataFrame(found, ROW).repartitionByRange(2, "partition")


def test_a_batch_frame(spark: SparkSession, tmp_path: Path) -> None:
    """P4: the account of a batch job is exact as soon as the job is done."""
    made = guard(tmp_path)

    assert rows(spark, BATCH).transform(made.flow(decode, price, name="orders")).count() == 37

    exact(made.ledger.total("orders"))
    assert [letter.record.coordinates for letter in letters(tmp_path)] == [
        "orders[0]@4",
        "orders[1]@1",
        "orders[1]@8",
    ]


def test_a_union_with_itself(spark: SparkSession, tmp_path: Path) -> None:
    """P4: records with offsets are counted once, however often one frame has them."""
    made = guard(tmp_path)
    guarded = rows(spark, BATCH).transform(made.flow(decode, price, name="orders"))

    assert guarded.union(guarded).count() == 2 * 37

    exact(made.ledger.total("orders"))
    assert len(letters(tmp_path)) == 3


def test_a_join_of_two_halves(spark: SparkSession, tmp_path: Path) -> None:
    """P4: two uses of a flow over two halves of a topic add up."""
    made = guard(tmp_path)
    flow = made.flow(decode, price, name="orders")
    source = rows(spark, BATCH)
    low = source.filter("offset < 10").transform(flow)
    high = source.filter("offset >= 10").transform(flow)

    pairs = low.join(high.withColumnRenamed("id", "other"), f.expr("other = id + 20")).count()

    assert pairs == 20 - 3
    exact(made.ledger.total("orders"))


def test_a_frame_evaluated_after_the_ledger_was_read(spark: SparkSession, tmp_path: Path) -> None:
    """P4: reading the ledger between two evaluations of a frame does not make them two batches."""
    made = guard(tmp_path)
    guarded = frame(spark, BATCH, partitions=2).transform(made.flow(decode, price, name="orders"))

    for _ in range(2):
        assert guarded.count() == 37
        exact(made.ledger.total("orders"))


def test_a_coalesced_frame(spark: SparkSession, tmp_path: Path) -> None:
    """P4: one task that evaluates several partitions of the flow counts all of them."""
    made = guard(tmp_path)
    guarded = (
        frame(spark, BATCH, partitions=3)
        .repartition(3)
        .transform(made.flow(decode, price, name="orders"))
    )

    assert guarded.coalesce(1).count() == 37

    exact(made.ledger.total("orders"))


def test_two_jobs_are_two_accounts(spark: SparkSession, tmp_path: Path) -> None:
    """P4: another frame through the same flow is another account, and the totals add up."""
    made = guard(tmp_path)
    flow = made.flow(decode, price, name="orders")

    for _ in range(2):
        assert frame(spark, BATCH).transform(flow).count() == 37
        exact(made.ledger.batches("orders")[-1])

    exact(made.ledger.total("orders"), times=2)


# --- other queries --------------------------------------------------------------------------------


@sg.filter
def cheap(priced: Priced) -> bool:
    """Half of the orders."""
    return priced.id % 2 == 0


def test_two_flows_in_one_query(spark: SparkSession, tmp_path: Path) -> None:
    """P4: each flow has its own account, side by side and one behind the other."""
    made = guard(tmp_path)

    @sg.map
    def again(priced: Priced) -> Priced:
        if priced.id == 0:
            raise ValueError("not the first")
        return priced

    source = kafka_stream(spark, tmp_path, BATCH)
    first = source.transform(made.flow(decode, price, name="orders"))
    behind = first.transform(made.flow(again, cheap, name="behind"))
    beside = source.transform(made.flow(decode, name="beside")).selectExpr("id", "amount total")

    made.run(build(behind.union(beside), tmp_path, made.foreach_batch(write(tmp_path))))

    totals = made.ledger.totals()
    assert set(totals) == {"orders", "behind", "beside"}
    assert all(total.balanced for total in totals.values())
    exact(totals["orders"])
    assert (totals["beside"].records_in, totals["beside"].records_out) == (40, 38)
    assert totals["behind"].records_in == 37
    assert totals["behind"].stages["again"]["dead_lettered"] == 1
    assert totals["behind"].total("filtered") == 37 - 1 - totals["behind"].records_out


@pytest.mark.parametrize("sink", ["parquet", "noop", "memory"])
def test_another_sink(spark: SparkSession, tmp_path: Path, sink: str) -> None:
    """P4: behind a sink of Spark's own the account is stored after the commit of each batch."""
    made = guard(tmp_path)
    guarded = stream(spark, tmp_path, BATCH, BATCH).transform(
        made.flow(decode, price, name="orders")
    )

    def query() -> Any:
        return (
            guarded.writeStream.format(sink)
            .queryName(f"other_{sink}")
            .option("path", str(tmp_path / "out"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )

    made.run(query)

    assert [account.batch_id for account in made.ledger.batches("orders")] == [0, 1]
    for account in made.ledger.batches("orders"):
        exact(account)
    # What the next process reads is what this one has stored.
    exact(guard(tmp_path).ledger.total("orders"), times=2)


def test_another_session(spark: SparkSession, tmp_path: Path) -> None:
    """P4: each session of an application tells of its own batches, and all are settled."""
    made = guard(tmp_path)
    flow = made.flow(decode, price, name="orders")
    assert frame(spark, BATCH).transform(flow).count() == 37
    guarded = stream(spark.newSession(), tmp_path, BATCH).transform(flow)

    def query() -> Any:
        return (
            guarded.writeStream.format("noop")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )

    made.run(query)

    (account,) = guard(tmp_path).ledger.batches("orders")
    exact(account)


@pytest.mark.parametrize("guarded", [True, False], ids=["guarded", "bare"])
def test_a_flow_in_a_batch_function(spark: SparkSession, tmp_path: Path, guarded: bool) -> None:
    """P4: a flow that is used within a batch function is counted with that batch."""
    made = guard(tmp_path)
    flow = made.flow(decode, price, name="orders")

    def store(batch: DataFrame, batch_id: int) -> None:
        batch.transform(flow).write.parquet(f"{tmp_path}/out/{batch_id}")

    source = stream(spark, tmp_path, BATCH, BATCH)
    made.run(build(source, tmp_path, made.foreach_batch(store) if guarded else store))

    accounts = guard(tmp_path).ledger.batches("orders")
    assert [account.batch_id for account in accounts] == [0, 1]
    for account in accounts:
        exact(account)


# --- a whole batch that leaves --------------------------------------------------------------------


def refuse(batch: DataFrame, batch_id: int) -> None:
    """Fail on the second batch, after half of it was seen."""
    batch.count()
    if batch_id == 1:
        raise ValueError("not this one")


def test_a_batch_is_skipped(spark: SparkSession, tmp_path: Path) -> None:
    """P1: asked for in so many words, a batch is skipped, counted, and the next one goes on."""
    made = guard(tmp_path, stages={"refuse": {"whole_batch": "skip"}})
    guarded = stream(spark, tmp_path, BATCH, BATCH, BATCH).transform(
        made.flow(decode, price, name="orders")
    )

    made.run(build(guarded, tmp_path, made.foreach_batch(refuse)))

    assert committed(tmp_path) == [0, 1, 2]
    exact(made.ledger.total("orders"), times=3)
    own = made.ledger.total("refuse")
    assert own.balanced
    assert own.stages["refuse"]["skipped"] == 37
    assert len(letters(tmp_path)) == 3 * 3


def test_a_batch_is_dead_lettered(spark: SparkSession, tmp_path: Path) -> None:
    """P1, P6: row by row, with the row as the payload and the coordinates that it carried."""
    made = guard(tmp_path, stages={"refuse": {"whole_batch": "dead_letter"}})
    guarded = kafka_stream(spark, tmp_path, BATCH, BATCH).transform(
        made.flow(decode, price, name="orders", carry=sg.ORIGIN)
    )

    made.run(build(guarded, tmp_path, made.foreach_batch(refuse)))

    assert committed(tmp_path) == [0, 1]
    found = [letter for letter in letters(tmp_path) if letter.failure.stage == "refuse"]
    assert {letter.failure.payload for letter in found} == {"row"}
    assert {letter.failure.batch_id for letter in found} == {1}
    assert {letter.failure.message for letter in found} == {"not this one"}
    origins = {(it.record.topic, it.record.partition, it.record.offset) for it in found}
    assert len(origins) == len(found) == 37
    for letter in found:
        row = json.loads(letter.record.value or b"")
        assert set(row) == {"id", "total"}
        # The second batch begins at offset 40, and its rows are dealt to two partitions.
        assert letter.record.offset == 40 + row["id"] // 2
        assert letter.record.partition == row["id"] % 2
    own = made.ledger.total("refuse")
    assert own.balanced
    assert own.stages["refuse"]["dead_lettered"] == 37


# --- what is carried ------------------------------------------------------------------------------


@sg.flat_map
def twice(priced: Priced) -> list[Priced]:
    """Two of each, and of every tenth none."""
    return [] if priced.id % 10 == 0 else [priced, Priced(priced.id, -priced.total)]


@sg.filter
def odd(order: Order) -> bool:
    """Every second."""
    return order.id % 2 == 1


@pytest.mark.parametrize("carry", [sg.ORIGIN, sg.RECORD], ids=["origin", "record"])
def test_carried_and_hidden(spark: SparkSession, tmp_path: Path, carry: Any) -> None:
    """What is carried is its row's own behind filter and flat_map, and functions do not see it."""
    made = guard(tmp_path)
    flow = made.flow(decode, odd, price, twice, name="orders", carry=[carry, "offset", "key"])
    guarded = rows(spark, BATCH).transform(flow)
    seen: list[list[str]] = []

    def store(batch: DataFrame, batch_id: int) -> None:
        seen.append(batch.columns)

    made.foreach_batch(store)(guarded, 0)
    out = guarded.collect()

    assert seen == [["id", "total", "offset", "key"]]
    left = set(range(1, 40, 2)) - {3, 17}
    assert sorted(row.id for row in out) == sorted([*left, *left])
    for row in out:
        assert row.offset == row._sparkguard.offset == row.id // 2
        assert row.key == b"k%d" % row.offset
        assert row._sparkguard.topic == "orders"
        assert row._sparkguard.partition == row.id % 2
    if carry is sg.RECORD:
        assert {row.id for row in out} == {json.loads(row._sparkguard.value)["id"] for row in out}
        assert all(row._sparkguard.key == row.key for row in out)
        assert all(
            [(h.key, h.value) for h in row._sparkguard.headers] == [("n", b"%d" % row.offset)]
            for row in out
        )
