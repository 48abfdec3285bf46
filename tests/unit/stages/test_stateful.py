"""How a stateful stage is declared, and what is said of one that cannot be."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest

import sparkguard as sg
from sparkguard.core.policy import Policy
from sparkguard.errors import ConfigError, StageError
from sparkguard.keyed import emitted_shape, with_versions
from tests.flow.made import policy


class State(msgspec.Struct):
    """What is known."""

    count: int = 0


class Event(msgspec.Struct):
    """What happened."""

    id: str


def count(state: State | None, event: Event) -> sg.Update[State, Event]:
    """One more."""
    return sg.Update(state=State(1 + (state.count if state else 0)), emit=[event])


def test_called_directly() -> None:
    """A stage behaves as the undecorated function."""
    stage = sg.stateful(key="id", state=State)(count)
    update = stage(None, Event("a"))
    assert update == sg.Update(state=State(1), emit=[Event("a")])
    assert (stage.name, stage.kind, stage.category) == ("count", "stateful", sg.Category.PROCESSING)
    assert emitted_shape(stage).ddl == "struct<id:string>"
    with pytest.raises(AttributeError):
        update.state = None  # type: ignore[misc]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"key": ""}, "key= names the column"),
        ({"first": 1}, "first= is of a sequence: say sequence="),
        ({"sequence": "id", "first": 2**63}, "is no 64-bit number"),
        ({"remember": -1}, "remember= cannot be negative"),
        ({"buffer": -1}, "buffer= cannot be negative"),
        ({"gap_timeout": timedelta(0)}, "gap_timeout= must be longer"),
        ({"ttl": timedelta(0)}, "ttl= must be longer"),
    ],
)
def test_what_does_not_fit_together(options: dict[str, Any], said: str) -> None:
    """Said when it is decorated, with the stage's name."""
    with pytest.raises(StageError, match=f"Stage 'count': .*{said}"):
        sg.stateful(**{"key": "id", "state": State, **options})(count)


def bare(state: State | None, event: Event) -> sg.Update:  # type: ignore[type-arg]
    """Does not say what it emits."""
    return sg.Update(state=state)


def alone(event: Event) -> sg.Update[State, Event]:
    """Takes no state."""
    return sg.Update(state=None)


@pytest.mark.parametrize(
    ("function", "said"),
    [(bare, "say what it emits: returns=Report"), (alone, r"two arguments, \(state, event\)")],
)
def test_what_its_function_must_say(function: Any, said: str) -> None:
    """Said when it is bound, with the stage's name."""
    with pytest.raises(StageError, match=said):
        emitted_shape(sg.stateful(key="id", state=State)(function))
    with pytest.raises(StageError, match=r"takes a stage made by sg\.stateful"):
        emitted_shape(sg.map(count, name="count", returns=Event))


def test_settings_that_would_not_be_kept() -> None:
    """Said by the guard, before anything is read."""
    settings = sg.Settings(stages={"count": {"record_timeout": "1s"}})
    with pytest.raises(ConfigError, match="'record_timeout' bounds"):
        sg.Guard(settings).stateful(sg.stateful(key="id", state=State)(count))


def _deciding(given: Policy) -> dict[str, str]:
    return {name.rpartition(".")[2]: type(handler).__name__ for name, handler in given.by_exception}


def test_who_decides_about_versions() -> None:
    """The defaults, unless the settings name the class or the one above them all."""
    duplicate, fail = "sparkguard.errors.DuplicateError", policy().on_fatal
    assert _deciding(with_versions(policy())) == {
        "DuplicateError": "LogAndContinueHandler",
        "StaleError": "LogAndContinueHandler",
        "GapError": "DeadLetterHandler",
        "ConflictError": "DeadLetterHandler",
    }
    one = with_versions(policy(by_exception=((duplicate, fail),)))
    assert _deciding(one)["DuplicateError"] == "FailHandler"
    assert _deciding(one)["StaleError"] == "LogAndContinueHandler"
    above = policy(by_exception=(("sparkguard.errors.VersionError", fail),))
    assert with_versions(above) == above
