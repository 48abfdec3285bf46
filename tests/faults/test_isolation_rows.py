"""The bad rows of a batch: found, dead-lettered, and the others written, whatever comes between."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import sparkguard as sg
from sparkguard.errors import ConfigError
from tests.spark.made import (
    build,
    committed,
    decode,
    guard,
    price,
    stream,
)
from tests.spark.target import BAD, ISOLATE, Target, exact, left_over, own, prices, started


def test_the_bad_rows_are_found(spark: SparkSession, tmp_path: Path) -> None:
    """P6: 3 of 10,000 rows break a constraint: three letters, and all the others are written."""
    target = Target(tmp_path)
    made, query = started(spark, tmp_path, target, prices(10_000, BAD), prices(10, set()))

    made.run(query)

    assert committed(tmp_path) == [0, 1]
    assert set(target.ids()) == set(range(10_000)) - BAD
    found = own(tmp_path)
    assert {json.loads(letter.record.value or b"")["id"] for letter in found} == BAD
    assert len(found) == 3
    for letter in found:
        row = json.loads(letter.record.value or b"")
        assert letter.failure.payload == "row"
        assert letter.failure.exception_type == "sqlite3.IntegrityError"
        assert letter.failure.category is sg.Category.PRODUCTION
        assert set(row) == {"id", "total"}
        # Its origin travelled with it: the rows are dealt to two partitions.
        assert (letter.record.partition, letter.record.offset) == (row["id"] % 2, row["id"] // 2)
    # The first range is the whole batch; the others are disjoint where they were written.
    assert target.calls[0][0].whole
    rows = sorted(row for part in target.written() for row in part)
    assert len(rows) == len(set(rows)) == 10_000 - 3
    assert len(target.calls) < 2 * 3 * 13 + 10
    exact(made, 10_000, 3)
    orders_account = made.ledger.total("orders")
    assert (orders_account.records_in, orders_account.balanced) == (10_010, True)
    assert left_over(tmp_path) == []


def test_an_outage_never_isolates(spark: SparkSession, tmp_path: Path) -> None:
    """P9: the whole batch is tried again, and then the settings decide; nothing is set aside."""
    target = Target(tmp_path)
    target.before = away
    made, query = started(
        spark, tmp_path, target, prices(10, {3}), on_transient="fail", retry={"max_attempts": 2}
    )

    with pytest.raises(sg.StageFailedError) as caught:
        made.run(query)

    assert (caught.value.facts["cause"], caught.value.facts["attempts"]) == ("transient", 2)
    assert left_over(tmp_path) == []
    assert own(tmp_path) == []


def away(_: sg.SubBatch) -> None:
    """The database does not answer."""
    raise ConnectionError("the database is away")


def bug(_: sg.SubBatch) -> None:
    """A name that nobody defined."""
    misspelt()  # type: ignore[name-defined]  # noqa: F821


def test_a_bug_never_isolates(spark: SparkSession, tmp_path: Path) -> None:
    """P10: wrong code is no row's fault."""
    target = Target(tmp_path)
    target.before = bug
    made, query = started(spark, tmp_path, target, prices(10, {3}))

    with pytest.raises(sg.StageFailedError, match="misspelt") as caught:
        made.run(query)

    assert caught.value.facts["cause"] == "programming"
    assert left_over(tmp_path) == []


def test_equal_rows(spark: SparkSession, tmp_path: Path) -> None:
    """P3, P6: two equal bad rows without coordinates are two letters."""
    target = Target(tmp_path)
    made = guard(tmp_path, stages={"store": {**ISOLATE}})
    lines = [*prices(20, {7}), *prices(20, {7})]
    guarded = stream(spark, tmp_path, lines).transform(made.flow(decode, price, name="orders"))
    stage = sg.foreach_batch(target.store, name="store")

    made.run(build(guarded, tmp_path, made.foreach_batch(stage)))

    assert len(own(tmp_path)) == 2
    assert len({letter.record.value for letter in own(tmp_path)}) == 1
    exact(made, 40, 2)


def test_the_handler_decides(spark: SparkSession, tmp_path: Path) -> None:
    """`log_and_continue` drops and counts the row, `fail` fails the query with its exception."""
    for name in ("skip", "fail"):
        (tmp_path / name).mkdir()
    target = Target(tmp_path / "skip")
    made, query = started(
        spark, tmp_path / "skip", target, prices(50, {7}), handler="log_and_continue"
    )
    made.run(query)
    account = made.ledger.total("store")
    assert account.balanced
    assert (account.records_in, account.total("skipped")) == (50, 1)
    assert own(tmp_path / "skip") == []
    assert len(target.ids()) == 49

    made, query = started(
        spark, tmp_path / "fail", Target(tmp_path / "fail"), prices(50, {7}), handler="fail"
    )
    with pytest.raises(sg.StageFailedError, match="CHECK constraint"):
        made.run(query)
    assert committed(tmp_path / "fail") == []


def test_names_outside_a_query(spark: SparkSession, tmp_path: Path) -> None:
    """Each frame has names of its own: a target that remembers them takes the second one too."""
    made = guard(tmp_path, stages={"store": {**ISOLATE}})
    names: list[str] = []

    @sg.foreach_batch
    def store(batch: DataFrame, batch_id: int, rows: sg.SubBatch) -> None:
        names.append(rows.transaction)
        if batch.where("id = 1").count():
            raise ValueError("refused")

    function = made.foreach_batch(store)
    for _ in range(2):
        function(spark.range(4), 0)
    assert len(names) == len(set(names)) > 6
    assert len({name.rpartition("/0/")[0] for name in names}) == 2


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ("1 as id, 2 as _sparkguard_row", "_sparkguard_row"),
        ("id, from_json('{}', 'a int, A int') as s", "could not be set aside"),
    ],
)
def test_what_cannot_be_set_aside(
    spark: SparkSession, tmp_path: Path, columns: str, sentence: str
) -> None:
    """P1: it is said before a plan is made: a replay would be bound to it."""
    made = guard(tmp_path, stages={"store": {**ISOLATE}})

    @sg.foreach_batch
    def store(batch: DataFrame, batch_id: int) -> None:
        raise ValueError("refused")

    with pytest.raises(sg.StageFailedError, match=sentence):
        made.foreach_batch(store)(spark.range(4).selectExpr(*columns.split(", ", 1)), 0)


@pytest.mark.parametrize("writes", [None, "append"])
def test_a_plain_append_is_refused(tmp_path: Path, writes: str | None) -> None:
    """Rows that a failed call has already written would be written twice."""
    made = guard(tmp_path, stages={"store": {"isolate": True, "writes": writes}})

    @sg.foreach_batch
    def store(batch: DataFrame, batch_id: int) -> None:
        """Never called."""

    with pytest.raises(ConfigError, match="has already written some rows"):
        made.foreach_batch(store)


def test_every_type_of_column(spark: SparkSession, tmp_path: Path) -> None:
    """Rows come back from where they were set aside as they were."""
    made = guard(tmp_path, stages={"store": {**ISOLATE}})
    seen: list[Any] = []

    @sg.foreach_batch
    def store(batch: DataFrame, batch_id: int) -> None:
        if batch.count() > 1:
            raise ValueError("one at a time")
        seen.extend(batch.selectExpr("cast(struct(*) as string)").collect())

    frame = spark.sql(
        "select 1 id, timestamp'0001-01-01 00:00:00.123456' t, date'0001-01-01' d, null n, "
        "cast(1.10 as decimal(38,18)) m, array(1, null) a, map('k', struct(1 `with space`)) s, "
        "X'00ff' b, timestamp_ntz'1000-01-01 00:00:00' z union all select 2, null, null, null, "
        "null, null, null, null, null"
    ).drop("n")

    made.foreach_batch(store)(frame, 0)

    assert sorted(seen) == sorted(frame.selectExpr("cast(struct(*) as string)").collect())
    assert not list((tmp_path / "state").rglob("*.parquet"))
