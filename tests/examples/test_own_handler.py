"""The plugin of the fifth example, installed as a user would install it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.examples.conftest import Ids, RunExample
from tests.support.spark import ROOT

LETTER_ID = r"""regexp_extract(decode(value), '"id": (\d+)', 1)::bigint"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder with the plugin installed in it."""
    source, target = tmp_path / "plugin", tmp_path / "site"
    shutil.copytree(ROOT / "examples/e05_own_handler/plugin", source)
    command = [*_installer(), "install", "--no-deps", "--target", str(target), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    return target


def _installer() -> list[str]:
    """The `pip` at hand: of the uv that `make setup` has brought, else of this interpreter."""
    uv = next(ROOT.glob(".tools/uv-*/bin/uv"), None) or shutil.which("uv")
    return [str(uv), "pip"] if uv else [sys.executable, "-m", "pip"]


def test_own_handler(run_example: RunExample, ids: Ids, site: Path) -> None:
    """A handler that came by entry point decides in the workers; its options come from YAML."""
    path = os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")]))
    printed = run_example("e05_own_handler/pipeline.py", PYTHONPATH=path)
    failed = [number for number in range(200) if number % 10 == 4]
    kept = [number for number in failed if number % 3 == 0]
    assert ids("out/*/*.parquet") == [number for number in range(200) if number not in failed]
    assert ids("urgent/**/*.parquet", LETTER_ID) == kept
    assert f"200 in = 180 out + {20 - len(kept)} skipped + {len(kept)} dead-lettered" in printed


def test_not_installed(run_example: RunExample, tmp_path: Path) -> None:
    """Without the plugin nothing starts: no record is read, and so none is lost."""
    run_example("e05_own_handler/pipeline.py", code=1)
    assert not (tmp_path / "checkpoint").exists()
