"""The driver is killed while it looks for the bad rows of a batch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from tests.faults.isolated import BAD, ROWS, made
from tests.spark.made import committed, letters


def ended(folder: Path, before: int = 0, after: int = 0) -> int:
    """How the job ended, in a process of its own."""
    command = [sys.executable, "-m", "tests.faults.isolated", str(folder), f"{before}", f"{after}"]
    return subprocess.run(command, check=False, timeout=150, capture_output=True).returncode


@pytest.mark.timeout(400)
@pytest.mark.parametrize(("before", "after"), [(6, 0), (0, 2)], ids=["before", "after"])
def test_killed_while_isolating(tmp_path: Path, before: int, after: int) -> None:
    """P1, P4, P6: kill -9 loses no row, writes none with other rows, and counts each once."""
    assert ended(tmp_path, before, after) == -9
    assert committed(tmp_path) == []
    assert ended(tmp_path) == 0

    assert committed(tmp_path) == [0]
    out = ds.dataset(tmp_path / "out", format="parquet", partitioning=None).to_table()
    assert sorted(out["id"].to_pylist()) == sorted(set(range(ROWS)) - BAD)
    found = [letter for letter in letters(tmp_path) if letter.failure.stage == "store"]
    assert sorted(json.loads(one.record.value or b"")["id"] for one in found) == sorted(BAD)
    ledger = made(tmp_path).ledger
    own, flow = ledger.total("store"), ledger.total("orders")
    assert own.balanced
    assert (own.records_in, own.records_out) == (ROWS, ROWS - len(BAD))
    assert (flow.records_in, flow.records_out, flow.balanced) == (ROWS, ROWS, True)
    calls = (tmp_path / "calls").read_text().split()
    assert len(calls) - len(set(calls)) == (1 if after else 0)
    assert not list((tmp_path / "state" / "isolation").glob("*"))
