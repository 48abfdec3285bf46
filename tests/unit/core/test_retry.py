"""How long to wait, whether to try again, and the clock over both."""

import math
from typing import Any

import pytest

from sparkguard.core.failure import Cause
from sparkguard.core.policy import Retry
from sparkguard.core.retry import TaskTimeout, backoff, hinted, should_retry
from tests.unit.core.named import Response, named


def ceiling(retry: Retry, attempt: int) -> float:
    """The longest wait that can be drawn."""
    return backoff(retry, attempt, lambda: 1.0)


def test_backoff_doubles_up_to_its_cap() -> None:
    """P7: 100 ms, doubled, capped at 10 s."""
    waits = [ceiling(Retry(), attempt) for attempt in range(1, 10)]
    assert waits == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10, 10])


def test_backoff_has_full_jitter() -> None:
    """P7: the wait is drawn from zero up, so partitions do not return together."""
    assert backoff(Retry(), 4, lambda: 0.0) == 0
    assert backoff(Retry(), 4, lambda: 0.5) == pytest.approx(0.4)


@pytest.mark.parametrize(
    ("retry", "attempt", "wait"),
    [
        (Retry(), 10_000, 10),
        (Retry(), 10**9, 10),
        (Retry(multiplier=1e300), 3, 10),
        (Retry(multiplier=1), 10_000, 0.1),
        (Retry(multiplier=0.5), 10_000, 0),
        (Retry(initial=0), 10_000, 0),
        (Retry(maximum=0), 3, 0),
        (Retry(), 0, 0.1),
        (Retry(initial=60), 1, 10),
        (Retry(maximum=math.inf), 10_000, math.inf),
    ],
)
def test_backoff_at_its_edges(retry: Retry, attempt: int, wait: float) -> None:
    """P7: the exponent cannot overflow, and a cap is a cap."""
    assert ceiling(retry, attempt) == pytest.approx(wait)


def test_task_timeout_arms_at_the_first_failure() -> None:
    """P8, KS-T1: tolerated at exactly five minutes, expired a millisecond later."""
    timeout = TaskTimeout(300)
    assert not timeout.expired(10_000)
    timeout.failed(0)
    timeout.failed(299)
    assert not timeout.expired(300)
    assert timeout.expired(300.001)


def test_progress_clears_the_clock() -> None:
    """P8, KS-T2: an error long after progress starts a clock of its own."""
    timeout = TaskTimeout(300)
    timeout.failed(0)
    timeout.progress()
    assert not timeout.expired(1_000)
    timeout.failed(1_000)
    assert not timeout.expired(1_300)
    assert timeout.expired(1_301)


def test_slow_successes_use_nothing_up() -> None:
    """P8: hours of slow work before a failure leave the whole timeout."""
    timeout = TaskTimeout(300)
    for hour in range(24):
        timeout.progress()
        assert not timeout.expired(hour * 3_600)
    timeout.failed(90_000)
    assert not timeout.expired(90_300)


def test_no_timeout_means_no_second_attempt() -> None:
    """P8: with 0 seconds the first failure is the last."""
    timeout = TaskTimeout(0)
    assert not timeout.expired(5)
    timeout.failed(5)
    assert timeout.expired(5)


def test_waits_end_with_the_clock() -> None:
    """P8: a wait is cut at the bound and never negative, so attempts and waits share one bound."""
    timeout = TaskTimeout(10)
    assert timeout.clip(7, 0) == 7
    timeout.failed(100)
    assert timeout.clip(7, 101) == 7
    assert timeout.clip(7, 105) == 5
    assert timeout.clip(7, 110) == 0
    assert timeout.clip(7, 999) == 0
    assert timeout.clip(-1, 101) == 0


@pytest.mark.parametrize("cause", [Cause.POISON, Cause.PROGRAMMING, Cause.FATAL])
def test_only_outages_are_retried(cause: Cause) -> None:
    """P7: only a transient cause is tried again."""
    assert not should_retry(cause, 1, Retry(), TaskTimeout(300), 0)
    assert should_retry(Cause.TRANSIENT, 1, Retry(), TaskTimeout(300), 0)


def test_attempts_and_time_are_limits() -> None:
    """P7, P8: the attempts in all, the first included, or the clock, whatever ends first."""
    timeout = TaskTimeout(300)
    timeout.failed(0)
    three = Retry(max_attempts=3)
    assert [should_retry(Cause.TRANSIENT, n, three, timeout, 1) for n in (1, 2, 3)] == [
        True,
        True,
        False,
    ]
    assert not should_retry(Cause.TRANSIENT, 1, Retry(max_attempts=1), timeout, 1)
    assert should_retry(Cause.TRANSIENT, 10**6, Retry(), timeout, 300)
    assert not should_retry(Cause.TRANSIENT, 1, Retry(), timeout, 301)


def test_a_whole_episode_is_bounded() -> None:
    """P8: with a clock that moves, waits and attempts end soon after the timeout."""
    timeout, now, attempts = TaskTimeout(60), 0.0, 1
    timeout.failed(now)
    while should_retry(Cause.TRANSIENT, attempts, Retry(), timeout, now):
        now += timeout.clip(backoff(Retry(), attempts, lambda: 0.7), now)
        now += 0.05
        attempts += 1
    assert 60 < now <= 60.1
    assert attempts < 30


@pytest.mark.parametrize(
    ("hint", "seconds"),
    [(3, 3.0), (2.5, 2.5), ("7", 7.0), (0, 0.0)]
    + [(bad, None) for bad in (None, -1, math.inf, math.nan, "soon", b"3", True, object(), "-1")]
    + [("Wed, 21 Oct 2026 07:28:00 GMT", None), (10**400, None)],
)
def test_hints(hint: object, seconds: float | None) -> None:
    """The other side may ask to wait, in seconds; anything else is no hint."""
    assert hinted(named("acme.Busy", retry_after=hint)()) == seconds


def test_hint_of_a_response() -> None:
    """The Retry-After header of an HTTP answer, also through an explicit cause."""
    busy = named("acme.Busy", response=Response(429, {"Retry-After": "12"}))
    outer = RuntimeError("x")
    outer.__cause__ = busy()
    assert hinted(busy()) == 12
    assert hinted(outer) == 12
    assert hinted(named("acme.Busy", response=Response(429))()) is None
    assert hinted(ValueError()) is None


def test_hints_never_raise() -> None:
    """An exception class may do anything in its attributes."""

    def odd(self: Any) -> Any:
        raise RuntimeError

    assert hinted(named("acme.Busy", retry_after=property(odd))()) is None
    assert hinted(named("acme.Busy", response=property(odd))()) is None
    assert hinted(named("acme.Busy", response=named("acme.R", headers=3))()) is None
