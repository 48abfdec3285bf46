"""Settings made in code: the same rules, the same errors, the documented defaults."""

from dataclasses import dataclass

import pytest
from pydantic import ValidationError

from sparkguard.config.model import (
    BackoffSettings,
    RetrySettings,
    Settings,
    SinkSettings,
    StageSettings,
)
from sparkguard.core.failure import Failure
from sparkguard.core.outcome import Continue, Outcome
from sparkguard.errors import InvalidSettingError


def test_defaults() -> None:
    """Without a word the documented defaults are in force."""
    settings = Settings()
    stage = settings.defaults
    assert stage.task_timeout == "5m"
    assert stage.retry.max_attempts is None
    backoff = stage.retry.backoff
    assert (backoff.initial, backoff.multiplier, backoff.max) == ("100ms", 2.0, "10s")
    assert (stage.budget.max_ratio, stage.budget.window, stage.budget.then) == (0.1, 1000, "fail")
    assert stage.on_null == "pass"
    restart = settings.restart
    assert (restart.max_restarts, restart.max_per_hour) == (5, 20)
    assert (restart.backoff.initial, restart.backoff.max) == ("1s", "1m")


def test_wrong_in_code() -> None:
    """A mistake in code is the same sentence as in a file, without a place."""
    with pytest.raises(InvalidSettingError) as caught:
        Settings(stages={"s": {"handlr": "fail"}}, defaults={"task_timeout": 5})
    first, second = str(caught.value).splitlines()
    assert first.startswith("defaults.task_timeout: A duration needs a unit")
    assert second.startswith("stages.s.handlr: Unknown key 'handlr'. Did you mean 'handler'?")


def test_wrong_nested_model() -> None:
    """A part that is made on its own raises our error too."""
    with pytest.raises(InvalidSettingError, match=r"^max_attempts: Must be at least 1\.$"):
        RetrySettings(max_attempts=0)
    with pytest.raises(InvalidSettingError, match="is longer than the longest"):
        StageSettings(retry=RetrySettings(backoff=BackoffSettings(initial="1m")))


def test_frozen() -> None:
    """Settings do not change once they are made."""
    settings = Settings()
    with pytest.raises(ValidationError, match="frozen"):
        settings.app = "other"


@dataclass(frozen=True)
class Shrug:
    """A handler that is given as a value."""

    def decide(self, failure: Failure) -> Outcome:
        return Continue()


def test_handler_as_value() -> None:
    """Code may give a handler itself instead of a name."""
    settings = Settings(stages={"s": {"handler": Shrug(), "by_exception": {"KeyError": Shrug()}}})
    handler = settings.stages["s"].handler
    assert handler is not None
    assert handler.value == Shrug()
    assert settings.stages["s"].by_exception["KeyError"].value == Shrug()


def test_repr_has_names_of_options_only() -> None:
    """An option may be a secret, so none is shown."""
    shown = repr(SinkSettings.model_validate({"type": "kafka", "config": {"p": "hunter2"}}))
    assert shown == "SinkSettings(type='kafka', config='…')"
