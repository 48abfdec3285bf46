"""The Prometheus plugin as users get it: installed with pip, found, and scraped over HTTP."""

import importlib.util
import json
import os
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLUGIN = ROOT / "plugins" / "sparkguard-prometheus"

PROGRAM = """
import json
from urllib.request import urlopen

from sparkguard.core.ledger import Account
from sparkguard.core.watch import BatchFinished, QueryStarted, RestartScheduled
from sparkguard.plugins import load, notify

members = load()
stages = {
    "price": {"entered": 10, "skipped": 1, "dead_lettered": 2, "failed_attempts": 5, "retries": 2}
}
account = Account(flow="orders", records_in=10, records_out=7, stages=stages)

import sparkguard_prometheus

def scrape():
    with urlopen(f"http://{sparkguard_prometheus.address()}/metrics", timeout=10) as answer:
        return answer.read().decode()

before = sparkguard_prometheus.address()
notify(members, QueryStarted(app="shop", query_name="q", flows={"orders": ("price",)}))
started = scrape()
notify(members, BatchFinished(app="shop", flow="orders", batch_id=0, account=account))
notify(members, RestartScheduled(app="shop", query_name="q"))
json.loads(sparkguard_prometheus.dashboard())
print(json.dumps([before, sparkguard_prometheus.__file__, started, scrape()]))
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment into which pip has installed the plugin; the rest is borrowed."""
    folder = tmp_path_factory.mktemp("venv")
    venv.create(folder, with_pip=True)
    found = folder / "bin" / "python"
    # A path line adds a folder but runs none of its .pth files: what is installed there in
    # editable mode stays behind, the plugin among it.
    site = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    (site / "borrowed.pth").write_text(f"{sysconfig.get_path('purelib')}\n{ROOT}\n")
    isolation = ["--no-build-isolation"] if importlib.util.find_spec("hatchling") else []
    install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    run(found, *install, *isolation, str(PLUGIN))
    return found


def run(python: Path, *arguments: str, **variables: str) -> str:
    """What the interpreter prints."""
    done = subprocess.run(
        [str(python), *arguments],
        env=_clean(os.environ) | variables,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def _clean(environ: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in environ.items() if not key.startswith(("PYTHON", "SPARK"))}


def test_scraped_over_http(python: Path) -> None:
    """P19: counters are apart, start at 0, and are scraped from a server on the driver."""
    printed = run(python, "-c", PROGRAM, SPARKGUARD_PROMETHEUS="127.0.0.1:0")
    before, file, started, after = json.loads(printed)
    assert before is None
    assert Path(file).is_relative_to(python.parents[1])
    stage = '{app="shop",flow="orders",stage="price"}'
    assert f"sparkguard_dead_lettered_total{stage} 0.0" in started
    for line in (
        'sparkguard_records_in_total{app="shop",flow="orders"} 10.0',
        'sparkguard_records_out_total{app="shop",flow="orders"} 7.0',
        f"sparkguard_skipped_total{stage} 1.0",
        f"sparkguard_dead_lettered_total{stage} 2.0",
        f"sparkguard_failed_attempts_total{stage} 5.0",
        f"sparkguard_retries_total{stage} 2.0",
        'sparkguard_sink_failures_total{app="shop",query="q"} 0.0',
        'sparkguard_restarts_total{app="shop",query="q"} 1.0',
    ):
        assert line in after.splitlines()


def test_listed(python: Path) -> None:
    """`sparkguard plugins` shows it with its distribution and version, and its hooks."""
    command = ["-c", "from sparkguard.cli import app; app()", "plugins", "--json"]
    found = {one["name"]: one for one in json.loads(run(python, *command))}
    assert found["prometheus"]["distribution"] == "sparkguard-prometheus"
    assert found["prometheus"]["version"] == "0.1.0"
    assert "on_batch_finished" in found["prometheus"]["watches"]
    listed = json.loads(run(python, *command, SPARKGUARD_PLUGINS=""))
    assert "prometheus" not in {one["name"] for one in listed}


def test_interpreter_is_the_new_one(python: Path) -> None:
    """The environment is not the one that runs these tests."""
    assert run(python, "-c", "import sys; print(sys.prefix)").strip() != sys.prefix
