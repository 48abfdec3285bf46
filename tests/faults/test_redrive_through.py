"""Letters of files and rows, which no topic can take, through a flow or a function again."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import DataFrame, SparkSession
from typer.testing import CliRunner

import sparkguard as sg
from sparkguard.cli import app

SETTINGS = {
    "app": "files",
    "state": {"path": "state"},
    "sinks": {"default": {"type": "file", "path": "dead-letters"}},
}
AT = datetime(2024, 2, 29, 12, tzinfo=UTC)


class Order(msgspec.Struct):
    id: int


decode = sg.deserialize(sg.Json(Order), name="decode")


@sg.map(name="price")
def broken(row: dict[str, Any]) -> Order:
    """Fails for every row of this test."""
    raise ValueError(row["id"])


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs `sparkguard dlq …` with a module of this test's names."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "orders", sys.modules[__name__])
    Path("guard.yaml").write_text(json.dumps(SETTINGS))

    def call(*arguments: str) -> tuple[int, Any, str]:
        done = CliRunner().invoke(app, ["dlq", *arguments, "--config", "guard.yaml", "--json"])
        assert isinstance(done.exception, SystemExit | None), done.exception
        return done.exit_code, json.loads(done.stdout or "null"), done.stderr

    return call


def _guard(folder: Path) -> sg.Guard:
    found = {**SETTINGS, "sinks": {"default": {"type": "file", "path": f"{folder}/dead-letters"}}}
    return sg.Guard(sg.Settings(**{**found, "state": {"path": f"{folder}/state"}}))


def test_lines_of_a_file(spark: SparkSession, tmp_path: Path, run: Any) -> None:
    """A flow reads them as it read the file's lines, and what fails again names no file of ours."""
    Path("in.txt").write_text('{"id": 1}\n{"id": "2"}\nnothing\n')
    frame = spark.read.text(f"{tmp_path}/in.txt")
    strict = _guard(tmp_path).flow(decode, name="orders")
    assert [row.id for row in frame.transform(strict).collect()] == [1]

    class Loose(msgspec.Struct):
        id: int | str

    loose = sg.deserialize(sg.Json(Loose), name="decode")

    @sg.map(name="number")
    def number(order: Loose) -> Order:
        return Order(int(order.id))

    sys.modules["orders"].fixed = _guard(tmp_path).flow(loose, number, name="orders")  # type: ignore[attr-defined]
    through = ("redrive", "--everything", "--through", "orders:fixed")
    code, told, _ = run(*through)
    assert (code, "say --output" in told["problems"][0]) == (1, True)
    code, told, _ = run(*through, "--output", f"{tmp_path}/out", "--dry-run")
    assert (code, told["letters"]["send"], told["target"]) == (0, 2, {"through": "orders:fixed"})
    code, told, _ = run(*through, "--output", f"{tmp_path}/out")
    assert (code, told["through"]) == (0, 2)
    assert [row.id for row in spark.read.parquet(f"{tmp_path}/out").collect()] == [2]
    _, found, _ = run("sql", "select decode(value) as line, file from letters order by file")
    assert [row["line"] for row in found["rows"] if row["file"] is None] == ["nothing"]
    code, told, _ = run("redrives")
    (one,) = told["redrives"]
    assert (one["through"], one["outcomes"]["through"]) == ("orders:fixed", 2)
    # What failed again is another letter.
    _, told, _ = run(*through, "--output", f"{tmp_path}/out", "--dry-run")
    assert (told["letters"]["already"], told["letters"]["send"]) == (2, 1)


SEEN: list[Any] = []


def again(frame: DataFrame) -> None:
    """What a user would write instead of a flow."""
    SEEN.extend(frame.collect())


def fails(frame: DataFrame) -> None:
    """What a user got wrong."""
    raise LookupError(frame.columns)


def test_rows(spark: SparkSession, tmp_path: Path, run: Any) -> None:
    """Columns come back with the types that are said; nothing is noted where the function fails."""
    schema = "id int, amount decimal(9,2), raw binary, at timestamp"
    values = [(n, Decimal("1.50"), b"\xff\x00", AT) for n in range(3)]
    frame = spark.createDataFrame(values, schema)
    flow = _guard(tmp_path).flow(broken, name="orders")
    assert frame.transform(flow).count() == 0
    for arguments, problem in (
        (("--through", "orders:again"), "does not tell their types"),
        (("--through", "orders:nothing"), "cannot be imported"),
        (("--through", "orders:again", "--output", "x"), "is no flow"),
        (("--through", "orders:fails", "--schema", schema), "failed, and nothing is noted"),
        (("--through", "orders:again", "--schema", "id nonsense"), "failed, and nothing is noted"),
    ):
        code, told, _ = run("redrive", "--everything", *arguments)
        assert (code, problem in told["problems"][0]) == (1, True), told
    known = run("redrives")[1]["redrives"]
    assert [(one["abandoned"], one["outcomes"]["through"]) for one in known] == [(True, 0)] * 3
    code, told, _ = run("redrive", "--everything", "--through", "orders:again", "--schema", schema)
    assert (code, told["through"]) == (0, 3)
    zone = [(*row[:3], row[3].replace(tzinfo=UTC)) for row in SEEN]
    assert sorted(zone) == values
