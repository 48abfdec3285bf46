"""`sparkguard retry-service`: what is wrong is told before Spark or Kafka is asked."""

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from sparkguard.cli import app

RETRY = {"type": "kafka", "bootstrap_servers": "127.0.0.1:1", "topic": "orders.retry"}


@pytest.fixture(autouse=True)
def _log() -> Iterator[None]:
    """The command sets its process's logging, which the tests after these share."""
    root, ours = logging.getLogger(), logging.getLogger("sparkguard")
    handlers, level = [*root.handlers], ours.level
    yield
    root.handlers[:] = handlers
    ours.setLevel(level)


def run(tmp_path: Path, settings: dict[str, object], *options: str) -> tuple[int, str]:
    """The command over these settings: its exit code, and what it says."""
    file = tmp_path / "guard.yaml"
    state = {"path": str(tmp_path / "state")}
    file.write_text(yaml.safe_dump({"app": "orders", "state": state, **settings}))
    result = CliRunner().invoke(app, ["retry-service", "--config", str(file), *options])
    return result.exit_code, result.output


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("--trigger", "5", "needs a unit"),
        ("--trigger", "10ms", "at least 100ms"),
        ("--spark-conf", "spark.jars", "key=value"),
        ("--buckets", "0", "greater than or equal to 1"),
    ],
)
def test_a_wrong_command_line(tmp_path: Path, option: str, value: str, says: str) -> None:
    """Exit code 2."""
    code, said = run(tmp_path, {}, option, value)
    assert code == 2
    assert says in said


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"redrive": {"topic": "back"}}, "Unknown sink 'retry'"),
        (
            {"redrive": {"topic": "back"}, "sinks": {"retry": {"type": "file", "path": "x"}}},
            "the type 'kafka' and the dialect 'native'",
        ),
        ({"sinks": {"retry": RETRY}}, "set 'redrive: {topic: …}'"),
        (
            {"sinks": {"retry": RETRY}, "redrive": {"topic": "back"}},
            "no broker answers at 127.0.0.1:1",
        ),
    ],
)
def test_settings_that_cannot_work(tmp_path: Path, settings: dict[str, object], says: str) -> None:
    """Exit code 1, a sentence and no traceback, the same as JSON."""
    code, said = run(tmp_path, settings, "--json")
    assert code == 1
    answer = json.loads(said)
    assert not answer["ok"]
    assert says in answer["problems"][0]
