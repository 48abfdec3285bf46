"""retry_later: when a record comes again, and what happens when it has come often enough."""

import pickle
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from sparkguard.core.failure import Category, Cause, Failure
from sparkguard.core.outcome import Continue, DeadLetter, Fail, Outcome, Restart, RetryLater
from sparkguard.core.record import Record
from sparkguard.core.replay import RETRIES
from sparkguard.errors import InvalidSettingError
from sparkguard.handlers.retry_later import RetryLaterHandler

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)


def failure(delays: int, cause: Cause = Cause.POISON) -> Failure:
    """A failure of a record that was put off so often."""
    headers = ((RETRIES, b"%d" % delays),) if delays else ()
    return Failure(
        stage="price",
        category=Category.PROCESSING,
        cause=cause,
        exception_types=("ValueError",),
        last_failed_at=NOW,
        record=Record(headers=headers, topic="orders", partition=0, offset=1),
    )


def nightly(now: datetime, attempt: int, of: Failure) -> datetime | None:
    """The next midnight, but twice at most."""
    assert of.stage == "price"
    midnight = now.replace(hour=0) + timedelta(days=1)
    return None if attempt >= 2 else midnight


def mistaken(now: datetime, attempt: int, of: Failure) -> int:
    """Seconds, and no time."""
    return 60


@pytest.mark.parametrize("cause", [Cause.POISON, Cause.TRANSIENT])
def test_each_delay_once_and_in_order(cause: Cause) -> None:
    """The n-th time waits for the n-th delay, from the failure on; then the delays are used up."""
    handler = RetryLaterHandler(delays=(MINUTE, HOUR))
    decided = [handler.decide(failure(n, cause)) for n in range(4)]
    assert decided == [
        RetryLater(NOW + MINUTE, "retry"),
        RetryLater(NOW + HOUR, "retry"),
        DeadLetter(),
        DeadLetter(),
    ]


@pytest.mark.parametrize(
    ("then", "outcome"),
    [
        ("dead_letter", DeadLetter),
        ("log_and_continue", Continue),
        ("fail", Fail),
        ("restart", Restart),
    ],
)
def test_then_is_another_handlers_word(then: str, outcome: type[Outcome]) -> None:
    """`then` takes the names of the other handlers, and means what they mean."""
    handler = RetryLaterHandler(delays=(MINUTE,), then=then)  # type: ignore[arg-type]
    assert type(handler.decide(failure(1))) is outcome


def test_a_function_gives_the_due_time() -> None:
    """`schedule` is asked with now, the delays so far and the failure; None ends it."""
    handler = RetryLaterHandler(schedule=f"{__name__}:nightly", sink="later")
    midnight = datetime(2026, 2, 1, tzinfo=UTC)
    decided = [handler.decide(failure(n)) for n in range(3)]
    assert decided == [RetryLater(midnight, "later")] * 2 + [DeadLetter()]


def test_a_schedule_that_gives_no_time_is_told() -> None:
    """P13: a handler that raises fails the query; nothing is stored without a due time."""
    handler = RetryLaterHandler(schedule=f"{__name__}:mistaken")
    with pytest.raises(TypeError, match="gave int, and no datetime"):
        handler.decide(failure(0))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "either 'delays'"),
        ({"delays": (MINUTE,), "schedule": f"{__name__}:nightly"}, "either 'delays'"),
        ({"schedule": "nightly"}, "'nightly' is not written as module:function"),
        ({"schedule": "no_such_module:f"}, "cannot be imported"),
        ({"schedule": f"{__name__}:nightli"}, "Did you mean 'nightly'"),
        ({"schedule": f"{__name__}:HOUR"}, "Unknown function 'HOUR'"),
    ],
)
def test_wrong_options_are_told(options: dict[str, object], says: str) -> None:
    """A name that cannot be resolved is an error when the settings are."""
    with pytest.raises(InvalidSettingError, match=says):
        RetryLaterHandler(**options)  # type: ignore[arg-type]


def test_it_travels() -> None:
    """It is a value, as every handler, and decides the same in a worker."""
    handler = RetryLaterHandler(schedule=f"{__name__}:nightly")
    arrived = pickle.loads(pickle.dumps(handler))
    assert arrived == handler == replace(handler)
    assert arrived.decide(failure(0)) == handler.decide(failure(0))
