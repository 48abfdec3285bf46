"""Every code block in the docs runs: Python as one program a page, YAML as settings."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from sparkguard.config.load import loads
from tests.docs.conftest import PAGES, ROOT, blocks

KNOWN = {"python", "yaml", "sh", "text", "toml", "promql", "sql"}


def _with(language: str) -> list[Any]:
    return [
        pytest.param(page, id=page.name)
        for page in PAGES
        if any(block.language == language for block in blocks(page))
    ]


@pytest.fixture
def folder(tmp_path: Path, spark: SparkSession) -> Iterator[Path]:
    """The test's own folder, as the working directory of Python and of Spark."""
    jvm: Any = spark.sparkContext._jvm
    context: Any = spark.sparkContext._jsc
    files = jvm.org.apache.hadoop.fs.FileSystem.get(context.hadoopConfiguration())
    before = Path.cwd(), files.getWorkingDirectory()
    os.chdir(tmp_path)
    files.setWorkingDirectory(jvm.org.apache.hadoop.fs.Path(f"file:{tmp_path}"))
    yield tmp_path
    os.chdir(before[0])
    files.setWorkingDirectory(before[1])


def _is_program(page: Any) -> bool:
    """Pages that make a session of their own are run as a program, in a folder of their own."""
    return "getOrCreate()" in page.values[0].read_text(encoding="utf-8")


# README has a test of its own.
@pytest.mark.parametrize(
    "page", [one for one in _with("python") if _is_program(one) and one.id != "README.md"]
)
def test_program(page: Path, tmp_path: Path) -> None:
    """A page that is a whole program runs as one."""
    python = []
    for block in blocks(page):
        if block.language == "yaml":
            python.append(f"open('guard.yaml', 'w').write({block.text!r})")
        if block.language == "python":
            python.append(block.text)
    (tmp_path / "page.py").write_text("\n".join(python), encoding="utf-8")
    ran = subprocess.run(
        [sys.executable, "page.py"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.parametrize("page", [one for one in _with("python") if not _is_program(one)])
def test_python(page: Path, folder: Path, spark: SparkSession) -> None:
    """A page's Python blocks run from top to bottom; a YAML block before is ``guard.yaml``."""
    # As in a notebook or a script: what is defined here travels to the workers by value.
    names: dict[str, Any] = {"__name__": "__main__", "spark": spark}
    for block in blocks(page):
        if block.language == "yaml":
            (folder / "guard.yaml").write_text(block.text)
        if block.language == "python":
            # Tracebacks then point to the line in the page.
            text = "\n" * (block.line - 1) + block.text
            exec(compile(text, str(page), "exec", dont_inherit=True), names)


@pytest.mark.parametrize("page", _with("yaml"))
def test_yaml(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every YAML block is a settings file without a mistake."""
    monkeypatch.setenv("KAFKA_PASSWORD", "secret")
    for block in blocks(page):
        if block.language == "yaml":
            loads(block.text, f"{page.relative_to(ROOT)}:{block.line}")


@pytest.mark.parametrize("page", [pytest.param(page, id=page.name) for page in PAGES])
def test_languages(page: Path) -> None:
    """No block hides from these tests behind a language that they do not know."""
    assert {block.language for block in blocks(page)} <= KNOWN
