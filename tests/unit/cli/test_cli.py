"""The command line: answers for people and programs, exit codes, no tracebacks."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from sparkguard.cli import app
from sparkguard.core.version import VERSION
from sparkguard.driver.state import State

ROOT = Path(__file__).parents[3]

MODULE = """
import sparkguard.stages.deserialize as d
from sparkguard.formats.raw import Raw
from sparkguard.stages.foreach_batch import foreach_batch
from sparkguard.stages.map import map


class Unpriced(Exception):
    pass


decode = d.deserialize(Raw(), name="decode")


@map
def price(order: bytes) -> str:
    return "1"


@foreach_batch
def store(batch, batch_id):
    pass
"""

Run = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run sparkguard in a folder that has a module `pipe`; files come as name=text."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    monkeypatch.delitem(sys.modules, "pipe", raising=False)
    (tmp_path / "pipe.py").write_text(MODULE)

    def running(*arguments: str, settings: str | None = None) -> Result:
        if settings is not None:
            (tmp_path / "guard.yaml").write_text(settings)
        result = CliRunner().invoke(app, arguments, env={"COLUMNS": "200"})
        assert result.exception is None or isinstance(result.exception, SystemExit)
        assert "Traceback" not in result.output
        return result

    return running


def test_check_right(run: Run) -> None:
    """A right file is said to be fine, with what it has; the exit code is 0."""
    settings = "stages: {price: {by_exception: {pipe.Unpriced: log_and_continue}}, decode: {}}"
    result = run("config", "check", "guard.yaml", "--module", "pipe", settings=settings)
    assert result.exit_code == 0
    assert result.stdout == "guard.yaml is fine: 2 stages, 1 sink.\n"
    result = run("config", "check", "guard.yaml", "--json")
    assert json.loads(result.stdout) == {
        "ok": True,
        "problems": [],
        "stages": ["decode", "price"],
        "sinks": ["default"],
    }


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ("stags: {}", "guard.yaml:1:1: stags: Unknown key 'stags'. Did you mean 'stages'?"),
        ("stages: {price: {handler: drop}}", "guard.yaml:1:27: stages.price.handler: Unknown h"),
        ("stages: {price: {by_exception: {pipe.Unprced: fail}}}", "Did you mean 'pipe.Unpriced'?"),
        ("sinks: {a: {type: file}}", "guard.yaml:1:12: sinks.a: The key 'path' is missing."),
        ("defaults: {sink: a}", "guard.yaml:1:18: defaults.sink: Unknown sink 'a'."),
        ("stages: [", "guard.yaml:1:10: This is no YAML"),
    ],
)
def test_check_wrong(run: Run, settings: str, sentence: str) -> None:
    """A wrong file is a sentence on stderr, or in JSON, and exit code 1."""
    arguments = ["config", "check", "guard.yaml", "--module", "pipe"]
    result = run(*arguments, settings=settings)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("error: ")
    assert sentence in result.stderr
    result = run(*arguments, "--json")
    answer = json.loads(result.stdout)
    assert (result.exit_code, answer["ok"]) == (1, False)
    assert sentence in "\n".join(answer["problems"])


def test_check_defaults_without_stages(run: Run) -> None:
    """What `defaults:` names is checked even if no stage is named."""
    result = run("config", "check", "guard.yaml", settings="defaults: {handler: drop}")
    assert result.exit_code == 1
    assert "Unknown handler 'drop'" in result.stderr


def test_check_unused_stage(run: Run) -> None:
    """A stage of the file that the module has not is a problem, with the nearest name."""
    settings = "stages: {decode: {}, prize: {}, other: {}}"
    result = run("config", "check", "guard.yaml", "--module", "pipe", settings=settings)
    assert result.exit_code == 1
    first, second = result.stderr.splitlines()
    where = "No stage of the module 'pipe' has this name."
    known = "Known: decode, price, store."
    assert first.endswith(f"guard.yaml:1:22: stages.prize: {where} Did you mean 'price'? {known}")
    assert second.endswith(f"guard.yaml:1:33: stages.other: {where} {known}")


def test_check_whole_batch(run: Run) -> None:
    """A foreach_batch that would lose a batch unasked is found before it runs."""
    settings = "stages: {store: {handler: dead_letter}}"
    result = run("config", "check", "guard.yaml", "--module", "pipe", settings=settings)
    assert result.exit_code == 1
    assert "whole_batch: dead_letter" in result.stderr


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("1 / 0", "The module 'bad' cannot be imported: ZeroDivisionError: division by zero."),
        ("raise SystemExit(0)", "The module 'bad' cannot be imported: SystemExit: 0."),
    ],
)
def test_check_module_fails(run: Run, tmp_path: Path, source: str, sentence: str) -> None:
    """A module that cannot be imported is a sentence, whatever it raises."""
    (tmp_path / "bad.py").write_text(source)
    result = run("config", "check", "guard.yaml", "--module", "bad", settings="")
    assert (result.exit_code, result.stderr) == (1, f"error: {sentence}\n")


def test_check_no_file(run: Run) -> None:
    """A file that is not there is a sentence."""
    result = run("config", "check", "nope.yaml")
    assert result.exit_code == 1
    assert "nope.yaml: The settings cannot be read: No such file or directory." in result.stderr


def test_schema(run: Run) -> None:
    """The schema is JSON, with the members' options."""
    result = run("config", "schema")
    assert result.exit_code == 0
    assert "bootstrap_servers" in json.dumps(json.loads(result.stdout)["$defs"]["SinkSettings"])


def test_plugins(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The built-ins are listed, to people and to programs."""
    monkeypatch.setenv("SPARKGUARD_PLUGINS", "")
    result = run("plugins")
    assert result.exit_code == 0
    assert "handlers: dead_letter, fail, log_and_continue, restart, retry_later" in result.stdout
    (first, *_) = json.loads(run("plugins", "--json").stdout)
    assert first == {
        "name": "handlers",
        "distribution": "sparkguard",
        "version": VERSION,
        "members": {
            "handler": ["dead_letter", "fail", "log_and_continue", "restart", "retry_later"]
        },
        "watches": [],
        "error": None,
    }


def test_plugins_unknown(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plugin that is asked for and not installed is a sentence, and exit code 1."""
    monkeypatch.setenv("SPARKGUARD_PLUGINS", "nope")
    for arguments in (["plugins"], ["config", "check", "guard.yaml"]):
        result = run(*arguments, settings="")
        assert result.exit_code == 1
        assert "SPARKGUARD_PLUGINS: Unknown plugin 'nope'." in result.stderr


def test_stop(run: Run, tmp_path: Path) -> None:
    """`stop` sets the marker in the state, found by --state, by --config or by the app's name."""
    settings = f"app: orders\nstate: {{path: {tmp_path / 'b'}}}"
    for arguments, place in (
        (["orders", "--state", str(tmp_path / "a")], tmp_path / "a"),
        (["--config", "guard.yaml"], tmp_path / "b"),
        (["payments"], tmp_path / "state" / "payments"),
    ):
        missing = run("stop", *arguments, settings=settings)
        assert missing.exit_code == 1
        assert "There is no state of the app" in missing.stderr
        assert not place.exists()
        place.mkdir(parents=True)
        result = run("stop", *arguments, "--json", settings=settings)
        assert result.exit_code == 0
        assert json.loads(result.stdout)["state"] == str(place)
        assert State(str(place)).stop_requested()


@pytest.mark.parametrize(
    "arguments",
    [
        ["stop"],
        ["stop", "--config", "guard.yaml", "--state", "x"],
        ["status"],
        ["audit"],
        ["nope"],
        ["config", "check"],
        ["config", "check", "guard.yaml", "--nope"],
    ],
)
def test_usage(run: Run, arguments: list[str]) -> None:
    """A wrong command line has exit code 2."""
    assert run(*arguments, settings="").exit_code == 2


def test_stop_other_app(run: Run) -> None:
    """The settings of another app are refused: stopping the wrong one is no small mistake."""
    result = run("stop", "orders", "--config", "guard.yaml", settings="app: payments")
    assert (result.exit_code, result.stderr) == (
        1,
        "error: guard.yaml is about the app 'payments', not 'orders'.\n",
    )


def test_version(run: Run) -> None:
    """--version prints the version."""
    assert run("--version").stdout == f"{VERSION}\n"


@pytest.mark.parametrize(
    "command",
    [["config", "check"], ["config", "schema"], ["plugins"], ["stop"], ["audit"], ["status"]],
)
def test_help_has_examples(run: Run, command: list[str]) -> None:
    """Each command's help shows how it is called."""
    shown = run(*command, "--help").stdout
    assert f"sparkguard {' '.join(command)}" in shown


def test_import_is_light() -> None:
    """The command starts without pydantic, pyspark, pyarrow or Kafka."""
    heavy = ["pydantic", "pyspark", "pyarrow", "confluent_kafka", "pluggy", "pandas", "duckdb"]
    code = f"import sys, sparkguard.cli; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout == "[]\n"
