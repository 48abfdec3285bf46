"""Runs an example as a user would, and gives back what it printed."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Protocol

import duckdb
import pytest

from tests.support import parts
from tests.support.spark import ROOT, SHORT_LIVED

SECONDS = 150


class RunExample(Protocol):
    """Runs a script below `examples`; it writes into the test's own folder."""

    def __call__(self, script: str, *args: str, code: int = 0, **env: str) -> str:
        """Its output, once it has ended with `code`."""
        ...


@pytest.fixture
def run_example(tmp_path: Path) -> RunExample:
    """Runs examples from the repository's root, with OUT set to the test's own folder."""
    parts.java()

    def run(script: str, *args: str, code: int = 0, **env: str) -> str:
        ran = subprocess.run(
            [sys.executable, str(ROOT / "examples" / script), *args],
            cwd=ROOT,
            env={
                **os.environ,
                "OUT": str(tmp_path),
                "SPARK_LOCAL_IP": "127.0.0.1",
                "PYSPARK_SUBMIT_ARGS": SHORT_LIVED,
                **env,
            },
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert ran.returncode == code, ran.stdout[-1000:] + ran.stderr[-4000:]
        return ran.stdout

    return run


class Ids(Protocol):
    """Reads one column of Parquet files in the test's own folder."""

    def __call__(self, files: str, column: str = "id") -> list[Any]:
        """Every value, sorted; a letter that was stored twice stands there twice."""
        ...


@pytest.fixture
def ids(tmp_path: Path) -> Ids:
    """Counts what an example left behind without asking sparkguard."""

    def read(files: str, column: str = "id") -> list[Any]:
        query = f"select {column} from '{tmp_path}/{files}' order by 1"
        return [row[0] for row in duckdb.execute(query).fetchall()]

    return read
