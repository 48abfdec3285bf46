"""The four handlers: each is one answer, whatever the failure."""

from collections.abc import Callable
from dataclasses import FrozenInstanceError, replace

import pytest

from sparkguard.core.failure import Category, Cause, Failure
from sparkguard.core.outcome import Continue, DeadLetter, Fail, Outcome, Restart
from sparkguard.core.policy import Handler
from sparkguard.handlers import base
from sparkguard.handlers.dead_letter import DeadLetterHandler
from sparkguard.handlers.fail import FailHandler
from sparkguard.handlers.log_and_continue import LogAndContinueHandler
from sparkguard.handlers.restart import RestartHandler

FAILURE = Failure(
    stage="price",
    category=Category.PROCESSING,
    cause=Cause.POISON,
    exception_types=("ValueError",),
)
HANDLERS: list[tuple[Handler, type[Outcome]]] = [
    (LogAndContinueHandler(), Continue),
    (DeadLetterHandler(), DeadLetter),
    (DeadLetterHandler(sink="topic"), DeadLetter),
    (FailHandler(), Fail),
    (RestartHandler(), Restart),
]


@pytest.mark.parametrize(("handler", "outcome"), HANDLERS)
@pytest.mark.parametrize("cause", list(Cause))
@pytest.mark.parametrize("category", list(Category))
def test_always_the_same(
    handler: Handler, outcome: type[Outcome], cause: Cause, category: Category
) -> None:
    """A built-in handler does not look at what failed; routing has."""
    decided = handler.decide(replace(FAILURE, cause=cause, category=category))
    assert type(decided) is outcome
    assert decided == handler.decide(replace(FAILURE, cause=cause, category=category))


def test_dead_letter_names_its_sink() -> None:
    """The option `sink` goes into the outcome; without it the stage's own is meant."""
    assert DeadLetterHandler(sink="topic").decide(FAILURE) == DeadLetter("topic")
    assert DeadLetterHandler().decide(FAILURE) == DeadLetter(None)


@pytest.mark.parametrize("make", [FailHandler, RestartHandler])
def test_reasons_are_given(make: Callable[[], Handler]) -> None:
    """Whoever reads why the query stopped finds a reason."""
    decided = make().decide(FAILURE)
    assert isinstance(decided, Fail | Restart)
    assert decided.reason


def test_restart_says_that_time_ran_out() -> None:
    """P8: a failure whose task timeout ended says so."""
    late = RestartHandler().decide(replace(FAILURE, timed_out=True))
    assert late == Restart("the task timeout ended while retrying")
    assert late != RestartHandler().decide(FAILURE)


@pytest.mark.parametrize("handler", [handler for handler, _ in HANDLERS])
def test_handlers_are_values(handler: Handler) -> None:
    """A handler is frozen and equal by its options: it travels to the workers as a value."""
    assert handler == replace(handler)  # type: ignore[type-var]
    with pytest.raises((FrozenInstanceError, AttributeError, TypeError)):
        handler.clock = 1  # type: ignore[attr-defined]


def test_the_contract_has_what_an_author_needs() -> None:
    """One import gives a handler's author everything."""
    assert base.Handler is Handler
    assert {"Failure", "Outcome", "DeadLetter", "Continue", "Fail", "Restart"} <= {*base.__all__}
