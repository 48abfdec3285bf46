"""Workers of a stateful stage are killed in the middle of a batch, and behind their letters."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec
import pyarrow.dataset as ds
from pyspark.sql import SparkSession

from sparkguard.testing import states
from tests.spark.made import guard, kafka_stream, letters
from tests.state.killed import Added, Sum
from tests.support.process import Child
from tests.support.spark import ROOT


def events(folder: Path, first: int) -> list[str]:
    """A hundred events of five accounts, each tenth bad; one kills its worker in batch 1."""
    killer = str(folder / "killed")
    made = [
        Added(f"a{n % 5}", n, -1 if n % 10 == 3 else n, killer if n == 150 else "")
        for n in range(first, first + 100)
    ]
    return [msgspec.json.encode(one).decode() for one in made]


def test_workers_are_killed(spark: SparkSession, tmp_path: Path) -> None:
    """P1, P4, P6: Spark tries the task again; each event counts once, and each letter by its id."""
    kafka_stream(spark, tmp_path, events(tmp_path, 0), events(tmp_path, 100))
    child = Child(
        [sys.executable, "-m", "tests.state.killed", str(tmp_path)],
        log=tmp_path / "log",
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    try:
        ended = child.process.wait(150)
    finally:
        child.end()

    assert ended == 0, (tmp_path / "log").read_text()[-5_000:]
    assert (tmp_path / "killed").exists()
    assert (tmp_path / "struck").exists()
    good: dict[str, list[int]] = {f"a{n}": [] for n in range(5)}
    for n in range(200):
        if n % 10 != 3:
            good[f"a{n % 5}"].append(n)
    stored = states(spark, str(tmp_path / "checkpoint"), Sum)
    assert stored == {
        key: (len(numbers), Sum(key, sum(numbers), len(numbers)), 0)
        for key, numbers in good.items()
    }
    rows = ds.dataset(tmp_path / "out", format="parquet", partitioning=None).to_table().to_pylist()
    told = sorted((row["account"], row["events"]) for row in rows)
    assert told == sorted((key, n + 1) for key, some in good.items() for n in range(len(some)))

    left = letters(tmp_path)
    assert sorted(int(one.failure.message.split()[0]) for one in left) == list(range(3, 200, 10))
    assert stored_rows(tmp_path) > len(left)
    total = guard(tmp_path).ledger.total("add")
    assert (total.records_in, total.records_out, total.balanced) == (200, 180, True)
    assert total.stages["add"]["dead_lettered"] == 20


def stored_rows(folder: Path) -> int:
    """How many letters lie in the files, those that were stored twice counted twice."""
    return int(ds.dataset(folder / "dead", format="parquet", partitioning=None).count_rows())
