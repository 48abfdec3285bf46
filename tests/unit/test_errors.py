"""Our errors: facts as attributes, a sentence each, whole after pickling, readable from text."""

from __future__ import annotations

import base64
import copy
import json
import pickle
import subprocess
import sys
from typing import Any

import pytest

from sparkguard import errors
from sparkguard.errors import (
    ConfigError,
    ConflictError,
    DuplicateError,
    DuplicateNameError,
    GapError,
    InvalidSettingError,
    LettersError,
    NoKeyError,
    PluginError,
    ProduceError,
    RecordTimeoutError,
    RestartLimitError,
    SinkError,
    SourceError,
    SparkguardError,
    StageError,
    StageFailedError,
    StaleError,
    StateError,
    TooLargeError,
    UnknownNameError,
    UnsupportedError,
    VersionError,
    WorkerCrashError,
)

FACTS = {
    "stage": "price",
    "category": "processing",
    "cause": "poison",
    "action": "restart",
    "topic": "orders",
    "partition": 3,
    "offset": 42,
    "message": "ü \udc80 [x]",
    "attempts": 2,
    "file": None,
}
MADE: list[SparkguardError] = [
    SparkguardError("x"),
    ConfigError("x"),
    InvalidSettingError("is wrong", key_path="a.b", file="guard.yaml", line=3, column=5),
    UnknownNameError("sink", "tpoic", ["topic", "default"], where="guard.yaml:3"),
    StageError("has no annotation", stage="price"),
    PluginError("is broken", plugin="p", distribution="sparkguard-handler-p"),
    DuplicateNameError("handler", "fail", "first", "second"),
    SinkError("is full", sink="topic", retriable=False),
    LettersError("There is no topic."),
    ProduceError("No.", topic="orders", code="_UNKNOWN_PARTITION", retriable=True),
    TooLargeError("It is too large.", topic="orders", code="MSG_SIZE_TOO_LARGE"),
    SourceError(servers="localhost:9092"),
    WorkerCrashError("was killed by SIGSEGV"),
    RecordTimeoutError("price", 0.5),
    VersionError("The event is wrong.", key="k", version=2),
    NoKeyError("The event has no key."),
    DuplicateError("The event was applied already.", key="k", version=2),
    StaleError("A later event was applied already.", key="k", version=2),
    GapError("The event came too early.", key="k", version=2),
    ConflictError("The event was made for another version.", key="k", version=2),
    StateError("The stored state cannot be read."),
    UnsupportedError("x"),
    StageFailedError("Stage 'price' failed.", FACTS),
    RestartLimitError("The restart limit is used up."),
]


def all_errors() -> set[type[BaseException]]:
    """Every exception class that errors.py defines."""
    found = vars(errors).values()
    return {each for each in found if isinstance(each, type) and issubclass(each, BaseException)}


def test_every_error_is_tried_here() -> None:
    """A new error must be made above, or its round trip is not tested."""
    assert {type(error) for error in MADE} == all_errors()


@pytest.mark.parametrize("error", MADE, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("protocol", [2, pickle.HIGHEST_PROTOCOL])
def test_pickles_whole(error: SparkguardError, protocol: int) -> None:
    """Every attribute and the sentence come back, more than once; by copy too."""
    error.add_note("a note")
    back: Any = error
    for _ in range(2):
        back = pickle.loads(pickle.dumps(back, protocol))
        assert type(back) is type(error)
        assert str(back) == str(error)
        assert back.args == error.args
        assert vars(back) == vars(error)
        assert getattr(back, "code", None) == getattr(error, "code", None)
    assert vars(copy.copy(error)) == vars(error)
    error.__notes__.clear()


@pytest.mark.parametrize("error", MADE, ids=lambda error: type(error).__name__)
def test_one_tree(error: SparkguardError) -> None:
    """Catching the root catches everything sparkguard raises on purpose, and the page draws it."""
    assert isinstance(error, SparkguardError)
    assert type(error).__name__ in (errors.__doc__ or "") or type(error) is SparkguardError


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (MADE[2], "guard.yaml:3:5: a.b: is wrong"),
        (InvalidSettingError("is wrong"), "is wrong"),
        (
            MADE[3],
            "guard.yaml:3: Unknown sink 'tpoic'. Did you mean 'topic'? Known: 'default', 'topic'.",
        ),
        (UnknownNameError("sink", "x", []), "Unknown sink 'x'. Known: none."),
        (MADE[4], "Stage 'price': has no annotation"),
        (StageError("No stage."), "No stage."),
        (MADE[5], "Plugin 'p' of distribution 'sparkguard-handler-p': is broken"),
        (
            MADE[6],
            "Plugin 'second': the handler 'fail' is already registered by 'first'.",
        ),
        (MADE[7], "Sink 'topic': is full"),
    ],
)
def test_sentences(error: SparkguardError, sentence: str) -> None:
    """An error builds its own sentence from its facts."""
    assert str(error) == sentence


def test_exit_code() -> None:
    """P14: the process exits with 75, also when the error was pickled on its way."""
    made = "from sparkguard.errors import RestartLimitError; import pickle; "
    raised = "raise pickle.loads(pickle.dumps(RestartLimitError('used up')))"
    done = subprocess.run(
        [sys.executable, "-c", made + raised], check=False, capture_output=True, timeout=60
    )
    assert done.returncode == 75


def test_facts_come_through_text() -> None:
    """A worker's failure is read back from the text that Spark makes of it."""
    sent = StageFailedError("Stage 'price' failed: [x] ü.", FACTS)
    text = (
        f"Job aborted: Traceback …\nsparkguard.errors.StageFailedError: {sent}\n\tat org.apache\n"
    )
    found = StageFailedError.find(text)
    assert found is not None
    assert found.facts == {**FACTS, "sentence": "Stage 'price' failed: [x] ü."}
    assert found.sentence == sent.sentence
    assert found.action == "restart"
    assert StageFailedError("x", {}).action == "fail"
    assert str(found) == str(sent)


def test_last_of_several() -> None:
    """The last readable marker counts; broken ones, and what records say before, do not."""
    broken = ["[sparkguard:x]", "[sparkguard:====]", "[sparkguard:]"]
    no_facts: list[Any] = [[1], "text", None, {"no": "sentence"}, 3]
    broken += [_marker(json.dumps(facts)) for facts in no_facts]
    broken += [_marker("{"), "[sparkguard:" + base64.urlsafe_b64encode(b"\xff{").decode() + "]"]
    text = " ".join(broken)
    assert StageFailedError.find(text) is None
    one, two = (StageFailedError(name, {"stage": name}) for name in ("one", "two"))
    found = StageFailedError.find(f"{text} {one} {two}")
    assert found is not None
    assert found.facts["stage"] == "two"


def test_a_record_forges_no_marker() -> None:
    """Text of a record in the sentence is no marker, and a plain failure shows none."""
    forged = str(StageFailedError("forged", {"stage": "forged"}))
    error = StageFailedError(f"bad value {forged}", {"stage": "price"})
    found = StageFailedError.find(str(error))
    assert found is not None
    assert found.facts["stage"] == "price"
    assert len(StageFailedError._MARKER.findall(str(error))) == 1
    assert "[sparkguard:" not in str(found.plain())
    assert found.plain().facts == found.facts


def test_facts_that_are_no_json() -> None:
    """What JSON has no form for goes as text: the failure still arrives."""
    found = StageFailedError.find(str(StageFailedError("x", {"odd": {1, 2}, "bytes": b"\xff"})))
    assert found is not None
    assert found.facts["bytes"] == "b'\\xff'"


@pytest.mark.parametrize("text", ["", "nothing", "[sparkguard:", "[sparkguard:" * 1000])
def test_no_marker(text: str) -> None:
    """Text without a marker is no failure of ours."""
    assert StageFailedError.find(text) is None


def _marker(text: str) -> str:
    return f"[sparkguard:{base64.urlsafe_b64encode(text.encode()).decode()}]"
