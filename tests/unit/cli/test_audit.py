"""`sparkguard audit` and `sparkguard status`, as a person or a program calls them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from sparkguard.cli import app
from sparkguard.core.ledger import FACTS, Account
from sparkguard.driver.accounts import Accounts
from sparkguard.driver.state import State

SETTINGS = """
app: orders
state: {path: state}
sinks: {default: {type: file, path: dead-letters}}
restart: {max_restarts: 3}
"""

Run = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs sparkguard in a folder with settings and a state in which one batch is counted."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "guard.yaml").write_text(SETTINGS)
    Accounts(State("state")).store([account()])

    def running(*arguments: str) -> Result:
        done = CliRunner().invoke(app, arguments, env={"COLUMNS": "200"})
        assert done.exception is None or isinstance(done.exception, SystemExit)
        assert "Traceback" not in done.output
        return done

    return running


def account(**more: Any) -> Account:
    """Ten records, of which two were skipped."""
    counts = {**dict.fromkeys(FACTS, 0), "entered": 10, "skipped": 2}
    known = {"records_in": 10, "records_out": 8, "rows_out": 8, "stages": {"price": counts}}
    return Account(flow="main", query_id="q", **{"batch_id": 7, **known, **more})


CONFIG = ("--config", "guard.yaml")


def test_audit(run: Run) -> None:
    """0 where all adds up, 1 with a line for each thing that does not."""
    done = run("audit", *CONFIG)
    assert done.exit_code == 0
    assert done.stdout.endswith("orders: adds up.\n")
    Accounts(State("state")).store([account(records_out=7)])
    done = run("audit", *CONFIG)
    assert (done.exit_code, "does not add up" in done.stdout) == (1, True)
    told = json.loads(run("audit", *CONFIG, "--json").stdout)
    wrong = [it for it in told["checks"] if it["verdict"] != "ok"]
    assert (told["ok"], told["app"]) == (False, "orders")
    assert [(it["kind"], it["of"], it["expected"], it["found"]) for it in wrong] == [
        ("account", "main", 10, 9)
    ]


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["--checkpoint", "nowhere"], 1, "There is no checkpoint at"),
        (["--output", "nowhere"], 1, "There is nothing at"),
        (["--flow", "mian"], 1, "Did you mean 'main'?"),
        (["--output-topic", "out"], 2, "go together"),
        (["--client", "acks"], 2, "key=value"),
    ],
)
def test_audit_asked_wrongly(run: Run, arguments: list[str], code: int, sentence: str) -> None:
    """A mistake is a sentence, and its exit code says whose it is."""
    done = run("audit", *CONFIG, *arguments)
    assert (done.exit_code, sentence in done.output) == (code, True)


@pytest.mark.parametrize("command", ["audit", "status"])
def test_a_state_that_cannot_be_read(run: Run, tmp_path: Path, command: str) -> None:
    """What another version wrote, or nobody may read, is a sentence."""
    document = tmp_path / "state" / "ledger" / "main.q.json"
    for text in ('{"older": 1, "recent": {}}', "[1]", "no JSON"):
        document.write_text(text)
        done = run(command, *CONFIG)
        assert (done.exit_code, done.stderr.startswith("error: The state's ")) == (1, True)
    document.unlink()
    document.mkdir()
    (tmp_path / "state" / "restarts").write_text("a file, and no folder")
    assert run(command, *CONFIG).exit_code == 1
    assert run(command, "--config", "nowhere.yaml").exit_code == 1


def test_nothing_that_a_terminal_obeys(run: Run) -> None:
    """Whatever a flow is called, no control character of its name is printed."""
    Accounts(State("state")).store([Account(flow="\x1b[2Jevil", query_id="q", batch_id=7)])
    for command in ("audit", "status"):
        assert "\x1b[2J" not in run(command, *CONFIG).stdout


def test_status(run: Run) -> None:
    """What runs well: totals, the last batch and when it was stored; exit code 0."""
    done = run("status", *CONFIG)
    assert done.exit_code == 0
    cells = done.stdout.splitlines()[-1].split()
    assert cells[:10] == ["main", "10", "8", "0", "2", "0", "0", "7", "10", "2"]
    assert "dead-lettered" in done.stdout
    told = json.loads(run("status", "orders", "--state", "state", "--json").stdout)
    assert (told["ok"], told["flows"][0]["last"]["batch_id"]) == (True, 7)
    assert told["limit"]["max_restarts"] == 5


def test_status_that_needs_a_person(run: Run) -> None:
    """A limit that is used up, by the settings' own limit: exit code 1, and a sentence."""
    State("state").store("restarts/build%2F1", {"since_commit": 3, "times": []})
    done = run("status", *CONFIG)
    assert (done.exit_code, "restarts of build/1: 3 of 3" in done.stdout) == (1, True)
    assert run("status", "orders", "--state", "state").exit_code == 0
