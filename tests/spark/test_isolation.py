"""The bad rows of a batch: found, dead-lettered, and the others written, whatever comes between."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Callable
from contextlib import closing
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
    kafka_stream,
    letters,
    price,
    stream,
)

ISOLATE: dict[str, Any] = {"isolate": True, "writes": "upsert"}
BAD = {17, 4_321, 9_876}


class Target:
    """A database with a constraint, written by upsert, all rows of a call or none.

    Attributes:
        calls: the ranges that were written or tried, with how it ended.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / "target.db"
        self.calls: list[tuple[sg.SubBatch, str]] = []
        self.before: Callable[[sg.SubBatch], None] = lambda _: None
        self.after: Callable[[sg.SubBatch], None] = lambda _: None
        with closing(self._open()) as database, database:
            database.execute(
                "create table if not exists totals (id integer primary key, "
                "total real not null check (total < 1e6), writes integer default 1)"
            )

    def _open(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path)

    def store(self, batch: DataFrame, batch_id: int, rows: sg.SubBatch) -> None:
        """The batch function."""
        assert batch.columns == ["id", "total"]
        self.before(rows)
        found = [tuple(row) for row in batch.collect()]
        try:
            with closing(self._open()) as database, database:
                database.executemany(
                    "insert into totals (id, total) values (?, ?) "
                    "on conflict (id) do update set writes = writes + 1",
                    found,
                )
        except sqlite3.IntegrityError:
            self.calls.append((rows, "refused"))
            raise
        self.calls.append((rows, "written"))
        self.after(rows)

    def ids(self) -> Counter[int]:
        """How often each row was written."""
        with closing(self._open()) as database:
            return Counter(dict(database.execute("select id, writes from totals").fetchall()))

    def written(self) -> list[range]:
        """The ranges that were written."""
        return [sub.rows for sub, how in self.calls if how == "written" and sub.rows is not None]


def prices(count: int, bad: set[int]) -> list[str]:
    """Orders, some of which the database refuses."""
    return [json.dumps({"id": n, "amount": 1e9 if n in bad else 1.0}) for n in range(count)]


def started(
    spark: SparkSession, folder: Path, target: Target, *batches: list[str], **store: Any
) -> tuple[sg.Guard, Callable[[], Any]]:
    """A guard and its query over these batches."""
    made = guard(folder, stages={"store": {**ISOLATE, **store}})
    source = kafka_stream(spark, folder, *batches)
    guarded = source.transform(made.flow(decode, price, name="orders", carry=sg.ORIGIN))
    stage = sg.foreach_batch(target.store, name="store")
    return made, build(guarded, folder, made.foreach_batch(stage))


def own(folder: Path) -> list[sg.Letter]:
    """The letters of the batch function."""
    return [letter for letter in letters(folder) if letter.failure.stage == "store"]


def left_over(folder: Path) -> list[Path]:
    """Files that were set aside, and journals."""
    aside = (folder / "checkpoint" / "_sparkguard").rglob("*.parquet")
    return [*aside, *(folder / "state" / "isolation").glob("*")]


def exact(made: sg.Guard, rows: int, bad: int) -> None:
    """The account has each row of the batch once."""
    account = made.ledger.total("store")
    assert account.balanced
    assert (account.records_in, account.records_out) == (rows, rows - bad)
    assert account.total("dead_lettered") == bad


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
