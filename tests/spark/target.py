"""A database that refuses some rows, and the query that writes to it."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

import sparkguard as sg
from tests.spark.made import (
    build,
    decode,
    guard,
    kafka_stream,
    letters,
    price,
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
