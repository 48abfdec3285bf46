"""The pure decisions under arbitrary input."""

import pickle
from dataclasses import fields, replace
from datetime import UTC, datetime
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from sparkguard.core.budget import Window
from sparkguard.core.classify import classify
from sparkguard.core.failure import Category, Cause, Failure
from sparkguard.core.fingerprint import describe
from sparkguard.core.jvm import classify_text
from sparkguard.core.letter import Letter, letter_id
from sparkguard.core.policy import Budget, Retry
from sparkguard.core.record import Record
from sparkguard.core.retry import TaskTimeout, backoff, should_retry
from sparkguard.errors import StageFailedError

ANY_TEXT = st.text(st.characters())  # lone surrogates included
SECONDS = st.floats(0, 1e9)
RECORDS = st.builds(
    Record,
    key=st.none() | st.binary(),
    value=st.none() | st.binary(),
    headers=st.lists(st.tuples(ANY_TEXT, st.none() | st.binary()), max_size=3).map(tuple),
    timestamp=st.none() | st.datetimes(timezones=st.just(UTC)),
    topic=st.none() | ANY_TEXT,
    partition=st.none() | st.integers(0, 2**31 - 1),
    offset=st.none() | st.integers(0, 2**63 - 1),
    file=st.none() | ANY_TEXT,
    columns=st.none() | ANY_TEXT,
)
FAILURES = st.builds(
    Failure,
    stage=ANY_TEXT,
    category=st.sampled_from(Category),
    cause=st.sampled_from(Cause),
    exception_types=st.lists(ANY_TEXT, max_size=3).map(tuple),
    message=ANY_TEXT,
    trace=ANY_TEXT,
    attempts=st.integers(1, 99),
    first_failed_at=st.just(datetime(2026, 5, 17, tzinfo=UTC)),
    timed_out=st.booleans(),
    record=RECORDS,
    app=ANY_TEXT,
    flow=ANY_TEXT,
    path=ANY_TEXT,
)


@given(
    st.builds(
        Retry,
        initial=SECONDS,
        multiplier=st.floats(0, 1e308),
        maximum=SECONDS,
    ),
    st.integers(-5, 10**9),
    st.floats(0, 1, exclude_max=True),
)
@example(Retry(), 10_000, 0.999)
def test_backoff_is_bounded(retry: Retry, attempt: int, drawn: float) -> None:
    """P7: never negative, never above the cap, whatever the numbers."""
    assert 0 <= backoff(retry, attempt, lambda: drawn) <= retry.maximum


@given(SECONDS, st.lists(st.tuples(st.sampled_from(["fail", "progress"]), st.floats(0, 100))))
def test_task_timeout(seconds: float, events: list[tuple[str, float]]) -> None:
    """P8: expired exactly when the first failure since progress lies further back than allowed."""
    timeout, now, first = TaskTimeout(seconds), 0.0, None
    for kind, step in events:
        now += step
        if kind == "fail":
            first = now if first is None else first
            timeout.failed(now)
        else:
            first = None
            timeout.progress()
        late = first is not None and (seconds <= 0 or now - first > seconds)
        assert timeout.expired(now) is late
        wait = timeout.clip(60, now)
        assert 0 <= wait <= 60
        if first is not None:
            assert wait == 0 or now + wait <= first + seconds + 1e-6
        assert should_retry(Cause.TRANSIENT, 1, Retry(), timeout, now) is not late


@given(
    st.lists(st.tuples(st.integers(0, 500), st.floats(0, 1)), max_size=40),
    st.floats(0, 1),
    st.integers(1, 1000),
)
def test_window(parts: list[tuple[int, float]], max_ratio: float, size: int) -> None:
    """P5: it holds a whole window once it has seen one, no whole batch more, and judges that."""
    made = Window(Budget(max_ratio=max_ratio, window=size))
    seen: list[tuple[int, int]] = []
    for entered, share in parts:
        failed = int(entered * share)
        made.add(entered, failed)
        seen.append((entered, failed))
        total = sum(each for each, _ in seen)
        assert made.entered >= min(total, size)
        assert made.entered - size < max(each for each, _ in seen)
        assert 0 <= made.failed <= made.entered
        ratio = made.failed / max(made.entered, size)
        assert made.exceeded() is (max_ratio < 1 and ratio > max_ratio)


@given(FAILURES)
def test_pickles(failure: Failure) -> None:
    """A failure and its letter come back from another process as they went."""
    letter = Letter(id=letter_id(failure), failure=failure)
    back = pickle.loads(pickle.dumps(letter))
    assert back == letter
    for field in fields(failure):
        assert getattr(back.failure, field.name) == getattr(failure, field.name)


@given(FAILURES, FAILURES)
def test_letter_ids(one: Failure, two: Failure) -> None:
    """P3: equal parts give equal ids, others do not; attempts and words are no part."""
    assert letter_id(one) == letter_id(replace(one, message="x", attempts=7, trace=""))
    assert (letter_id(one) == letter_id(two)) == (_parts(one) == _parts(two))


def _parts(failure: Failure) -> tuple[Any, ...]:
    record = failure.record
    where = (failure.app, failure.flow, failure.stage, failure.path)
    if record.offset is not None:
        return (*where, record.topic, record.partition, record.offset, record.value)
    return (*where, record.file, record.columns, record.key, record.value, None)


@given(ANY_TEXT, st.integers(0, 300), st.lists(ANY_TEXT, max_size=2))
def test_describe(message: str, limit: int, redact: list[str]) -> None:
    """P17: any message, limit and pattern: bounded text that UTF-8 can hold."""
    found = describe(ValueError(message), redact=redact, limit=limit)
    assert len(found.message) <= limit
    assert len(found.trace) <= limit
    (found.message + found.trace).encode()


@given(ANY_TEXT)
@example("[sparkguard:e30=] SQLSTATE: 22000 [A_B.C] Traceback (most recent call last)\nMemoryError")
def test_text_is_read_without_an_error(text: str) -> None:
    """Whatever reaches the driver as text is read without an error."""
    assert classify_text(text) in {None, *Cause}
    assert classify(Exception(text)) is Cause.POISON


@given(
    ANY_TEXT,
    st.dictionaries(
        ANY_TEXT.filter(lambda key: key != "sentence"),
        st.none() | st.booleans() | st.integers() | ANY_TEXT,
    ),
    ANY_TEXT,
)
def test_facts_come_through_text(sentence: str, facts: dict[str, Any], around: str) -> None:
    """A failure's facts are read back from any text around them."""
    found = StageFailedError.find(f"{around}{StageFailedError(sentence, facts)}{around}")
    assert found is not None
    assert found.facts == {**facts, "sentence": sentence}
    assert found.sentence == sentence
