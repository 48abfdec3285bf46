"""Settings from a file: what is right, and what is said about what is wrong."""

import pickle
from pathlib import Path

import pytest

from sparkguard.config.load import load, loads
from sparkguard.config.model import Settings
from sparkguard.errors import InvalidSettingError

WHOLE = """
app: orders
state: {path: state/orders}
sinks:
  default: {type: file, path: dead-letters}
  topic: {type: kafka, bootstrap_servers: "${KAFKA:-localhost:9092}", topic: orders.dead}
defaults:
  task_timeout: 5m
stages:
  decode: {handler: log_and_continue}
  price:
    handler: {type: dead_letter, sink: topic}
    sink: topic
    by_exception: {orders.Unpriced: log_and_continue}
    classify: {transient: [requests.exceptions.Timeout]}
    retry: {max_attempts: 3, backoff: {initial: 200ms}}
    budget: {max_ratio: 0.05, then: restart}
    on_null: skip
  store: {isolate: true, writes: upsert, whole_batch: dead_letter}
restart: {max_restarts: 5, backoff: {max: 2m}}
redact: ['\\d{16}']
"""


def problems(text: str) -> list[str]:
    """What is wrong with `text`, one sentence each."""
    with pytest.raises(InvalidSettingError) as caught:
        loads(text, "g.yaml")
    return str(caught.value).splitlines()


def test_whole_file() -> None:
    """Every setting of the documentation is read."""
    settings = loads(WHOLE)
    assert settings.app == "orders"
    assert settings.sinks["topic"].options["bootstrap_servers"] == "localhost:9092"
    price = settings.stages["price"]
    assert price.handler is not None
    assert (price.handler.type, price.handler.options) == ("dead_letter", {"sink": "topic"})
    assert price.budget.max_ratio == 0.05
    assert settings.restart.backoff.max == "2m"
    assert settings.redact == (r"\d{16}",)


@pytest.mark.parametrize("text", ["", "# nothing\n", "stages:\n", "stages:\n  decode:\n", "{}"])
def test_nothing_said(text: str) -> None:
    """An empty file, and keys whose values are commented out, leave the defaults."""
    settings = loads(text)
    assert settings.defaults == Settings().defaults
    assert settings.restart == Settings().restart


def test_file_and_code_agree() -> None:
    """What YAML says can be said in code, with the same result."""
    text = "app: a\nstages: {s: {handler: fail, retry: {max_attempts: 2}}}"
    assert loads(text) == Settings(
        app="a", stages={"s": {"handler": "fail", "retry": {"max_attempts": 2}}}
    )


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("ap: x", "g.yaml:1:1: ap: Unknown key 'ap'. Did you mean 'app'? Known: app, defaults"),
        ("app: 5", "g.yaml:1:6: app: Must be text."),
        ("app: a/b", "g.yaml:1:6: app: Must be of letters"),
        ("- a", "g.yaml:1:1: The settings must be a mapping."),
        ("stages: [a]", "g.yaml:1:9: stages: Must be a mapping."),
        ("stages: {s: fail}", "g.yaml:1:13: stages.s: Must be a mapping."),
        ("stages:\n  s: {isolate: yes}", "g.yaml:2:16: stages.s.isolate: Must be true or false"),
        ("stages:\n  s:\n    handlr: x", "g.yaml:3:5: stages.s.handlr: Unknown key 'handlr'. Did"),
        ("defaults: {retry: {max_atempts: 1}}", "Did you mean 'max_attempts'? Known: backoff"),
        ("defaults: {retry: {max_attempts: '3'}}", "max_attempts: Must be a whole number."),
        ("defaults: {retry: {max_attempts: 0}}", "max_attempts: Must be at least 1."),
        ("defaults: {retry: {max_attempts: true}}", "max_attempts: Must be a whole number."),
        ("defaults: {budget: {max_ratio: 5}}", "defaults.budget.max_ratio: Must be at most 1"),
        ("defaults: {budget: {max_ratio: x}}", "defaults.budget.max_ratio: Must be a number."),
        ("defaults: {budget: {then: stop}}", "budget.then: Must be 'fail' or 'restart'."),
        ("defaults: {task_timeout: 30}", "g.yaml:1:26: defaults.task_timeout: A duration needs a"),
        ("defaults: {on_null: drop}", "on_null: Must be 'pass', 'skip' or 'fail'."),
        ("defaults: {classify: {transiet: [A]}}", "classify.transiet: Unknown key 'transiet'. It"),
        ("defaults: {classify: {poison: [A], transient: [A]}}", "'A' stands under classify twice"),
        ("defaults: {handler: {sink: x}}", "defaults.handler: The key 'type' is missing."),
        ("defaults: {handler: [fail]}", "defaults.handler: Must be a name, or a mapping"),
        ("defaults: {handler: {type: 5}}", "defaults.handler.type: Must be text."),
        ("sinks: {a: {path: x}}", "sinks.a: The key 'type' is missing."),
        ("redact: ['(']", "g.yaml:1:10: redact[0]: This is no regular expression"),
        ("redact: x", "redact: Must be a list."),
        (
            "defaults: {retry: {backoff: {initial: 20s}}}",
            "g.yaml:1:29: defaults.retry.backoff: The first wait ('initial') is longer",
        ),
    ],
)
def test_wrong_setting(text: str, sentence: str) -> None:
    """Each mistake is one sentence with file, line, column and key path."""
    (problem,) = problems(text)
    assert sentence in problem
    assert problem.startswith(("g.yaml:1:", "g.yaml:2:", "g.yaml:3:"))
    assert "pydantic" not in problem


def test_all_problems_at_once() -> None:
    """Every problem of a file is listed, one a line, in the order of the file."""
    text = "ap: 1\nstages:\n  s: {isolate: on, on_null: '${NOPE}'}\nstages: {}\nrestart: {max: 1}\n"
    found = problems(text)
    assert [line.split(": ")[1] for line in found] == [
        "ap",
        "stages.s.isolate",
        "stages.s.on_null",
        "stages",
        "restart.max",
    ]


def test_secret_is_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """A value from the environment stands in no error and in no repr (secrets are masked)."""
    monkeypatch.setenv("SECRET", "hunter2")
    keys = "task_timeout: ${SECRET}\n  on_null: ${SECRET}\n  retry: ${SECRET}\n  isolate: ${SECRET}"
    assert "hunter2" not in "".join(problems(f"app: '${{SECRET}} !'\ndefaults:\n  {keys}\n"))
    settings = loads("sinks: {a: {type: kafka, config: {sasl.password: '${SECRET}'}}}")
    assert settings.sinks["a"].options["config"]["sasl.password"] == "hunter2"
    assert "hunter2" not in f"{settings!r} {settings}"


def test_no_file(tmp_path: Path) -> None:
    """A file that is not there, is a folder or is no UTF-8 is a sentence that names it."""
    for path in (tmp_path / "nope.yaml", tmp_path):
        with pytest.raises(InvalidSettingError, match=f"^{path}: The settings cannot be read"):
            load(path)
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"app: \xff")
    with pytest.raises(InvalidSettingError, match="is not UTF-8"):
        load(binary)


def test_load_names_the_file(tmp_path: Path) -> None:
    """Errors carry their place as attributes, and keep them through pickling."""
    file = tmp_path / "guard.yaml"
    file.write_text("stages:\n  s: {handler: 3}\n")
    with pytest.raises(InvalidSettingError) as caught:
        load(file)
    error = pickle.loads(pickle.dumps(caught.value))
    assert (error.file, error.line, error.column) == (str(file), 2, 16)
    assert error.key_path == "stages.s.handler"
