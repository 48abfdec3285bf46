"""Which handler decides, and what becomes of a handler that does not."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest

from sparkguard.core.classify import classify
from sparkguard.core.decide import decide
from sparkguard.core.failure import Cause, Failure
from sparkguard.core.fingerprint import type_names
from sparkguard.core.outcome import Continue, DeadLetter, Fail, Outcome
from sparkguard.core.policy import Policy
from sparkguard.core.route import CRASH, route
from sparkguard.errors import StageFailedError, WorkerCrashError
from tests.unit.core.made import FAILURE, failure


@dataclass(frozen=True)
class Named:
    """A handler known by its name."""

    name: str

    def decide(self, failure: Failure) -> Outcome:
        return DeadLetter(self.name)


POLICY = Policy(
    handler=Named("stage"),
    on_transient=Named("transient"),
    on_programming=Named("programming"),
    on_fatal=Named("fatal"),
    by_exception=(("Exception", Named("any")), ("orders.Unpriced", Named("unpriced"))),
)


@pytest.mark.parametrize(
    ("cause", "name"),
    [
        (Cause.TRANSIENT, "transient"),
        (Cause.PROGRAMMING, "programming"),
        (Cause.FATAL, "fatal"),
        (Cause.POISON, "unpriced"),
    ],
)
def test_cause_first(cause: Cause, name: str) -> None:
    """P9, P10: the cause decides before the exception, so handlers of a stage see poison only."""
    assert route(failure(cause=cause), POLICY) == Named(name)


@pytest.mark.parametrize("handler", [Named("crash"), None])
def test_a_crash(handler: Named | None) -> None:
    """P11: a record that ended its process has a handler of its own; nothing else asks that one."""
    policy = replace(POLICY, on_crash=handler)
    crashed = failure(cause=Cause.FATAL, exception_types=(CRASH, "Exception"))

    assert route(crashed, policy) == (handler or Named("fatal"))
    assert route(failure(cause=Cause.FATAL), policy) == Named("fatal")
    assert classify(WorkerCrashError("was killed")) is Cause.FATAL
    assert type_names(WorkerCrashError)[0] == CRASH


@pytest.mark.parametrize(
    ("types", "name"),
    [
        (("orders.Unpriced", "ValueError", "Exception"), "unpriced"),
        (("orders.Late", "orders.Unpriced", "Exception"), "unpriced"),
        (("ValueError", "Exception"), "any"),
        (("SystemError",), "stage"),
        ((), "stage"),
    ],
)
def test_most_specific_exception(types: tuple[str, ...], name: str) -> None:
    """Subclasses too, the nearest class first, whatever the order in the settings."""
    turned = replace(POLICY, by_exception=POLICY.by_exception[::-1])
    assert route(failure(exception_types=types), POLICY) == Named(name)
    assert route(failure(exception_types=types), turned) == Named(name)


def test_spelling_of_builtins() -> None:
    """`builtins.ValueError` and `ValueError` are one class."""
    spelt = replace(POLICY, by_exception=(("builtins.ValueError", Named("value")),))
    assert route(failure(exception_types=("ValueError",)), spelt) == Named("value")


def test_outcome_of_the_handler() -> None:
    """What the handler returns is the outcome."""
    assert decide(FAILURE, POLICY) == DeadLetter("unpriced")


class _Odd:
    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def decide(self, failure: Failure) -> Outcome:
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "answer", [None, True, "dead_letter", Continue, RuntimeError("x"), SystemExit(1)]
)
def test_handler_that_does_not_decide(answer: Any) -> None:
    """P13: a handler that raises or returns no outcome fails the query; the first error stays."""
    first = ValueError("no price")
    odd = replace(POLICY, handler=_Odd(answer), by_exception=())
    with pytest.raises(StageFailedError, match="_Odd") as met:
        decide(failure(exception=first), odd)
    assert met.value.action == "fail"
    assert met.value.__cause__ is first
    assert met.value.facts["stage"] == "price"


def test_outcomes_are_told_apart() -> None:
    """Outcomes are values: equal by what they say."""
    assert Fail("x") == Fail("x") != Fail("y")
    assert len({Continue(), Continue(), DeadLetter(), DeadLetter("a")}) == 3
