"""README's example, run as a user would who copies it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import duckdb

from tests.docs.conftest import ROOT, blocks
from tests.support import parts


def test_example(tmp_path: Path) -> None:
    """P1: the very code in README runs, and every order is in the output or in a letter."""
    parts.java()
    found = list(blocks(ROOT / "README.md"))
    program = next(block.text for block in found if block.language == "python")
    settings = next(block.text for block in found if block.language == "yaml")
    (tmp_path / "pipeline.py").write_text(program)
    (tmp_path / "guard.yaml").write_text(settings)
    (tmp_path / "orders").mkdir()
    orders = [json.dumps({"id": n, "amount": -1.0 if n % 10 == 3 else 20.0}) for n in range(100)]
    orders[50] = orders[50][:-4]
    (tmp_path / "orders" / "1.jsonl").write_text("\n".join(orders))

    env = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    ran = subprocess.run(
        [sys.executable, "pipeline.py"],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    bad = [n for n in range(100) if n % 10 == 3 or n == 50]
    out = duckdb.execute(f"select id from '{tmp_path}/out/*/*.parquet' order by id").fetchall()
    assert [row[0] for row in out] == [n for n in range(100) if n not in bad]
    letters = duckdb.execute(
        f"select decode(value) from '{tmp_path}/dead-letters/**/*.parquet'"
    ).fetchall()
    assert sorted(row[0] for row in letters) == sorted(orders[n] for n in bad)
    assert "100 in, 89 out, 11 dead-lettered" in ran.stdout


def test_packaged() -> None:
    """What the package index shows is this README: the build is told so."""
    assert 'readme = "README.md"' in (ROOT / "pyproject.toml").read_text()
