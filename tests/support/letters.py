"""Arbitrary letters, for properties that hold for all of them."""

from datetime import datetime, timedelta, timezone

from hypothesis import strategies as st

from sparkguard.core.failure import Category, Cause, Failure
from sparkguard.core.letter import Letter
from sparkguard.core.record import Record

STORABLE = st.characters(exclude_categories=["Cs"])
ANY = st.characters()
COUNTS = st.integers(min_value=0, max_value=2**31 - 1)
OFFSETS = st.integers(min_value=0, max_value=2**63 - 1)
BYTES = st.binary(max_size=30)
ZONES = st.integers(min_value=-840, max_value=840).map(lambda m: timezone(timedelta(minutes=m)))
_FROM, _TO = (datetime.min.replace(year=year) for year in (2, 9998))  # noqa: DTZ901
TIMES = st.none() | st.datetimes(_FROM, _TO, timezones=ZONES)


def letters(characters: st.SearchStrategy[str] = STORABLE) -> st.SearchStrategy[Letter]:
    """Letters whose text is of these characters, `ANY` for lone surrogates too."""
    text = st.text(characters, max_size=20)
    return st.builds(
        Letter,
        id=st.text("0123456789abcdef", min_size=1, max_size=32),
        failure=_failures(text),
        replays=COUNTS,
        version=st.sampled_from(["", "0.1.0"]),
        overflow=st.none() | text,
    )


def _failures(text: st.SearchStrategy[str]) -> st.SearchStrategy[Failure]:
    return st.builds(
        Failure,
        stage=text,
        category=st.sampled_from(Category),
        cause=st.sampled_from(Cause),
        exception_types=st.lists(text, max_size=3).map(tuple),
        message=text,
        trace=text,
        fingerprint=text,
        attempts=COUNTS,
        first_failed_at=TIMES,
        last_failed_at=TIMES,
        timed_out=st.booleans(),
        record=_records(text),
        app=text,
        flow=text,
        query_name=st.none() | text,
        query_id=st.none() | text,
        batch_id=st.none() | OFFSETS,
        path=text,
        payload=st.sampled_from(["record", "row"]),
        exception=st.none(),
    )


def _records(text: st.SearchStrategy[str]) -> st.SearchStrategy[Record]:
    # A record that was a letter before still has the facts of then among its headers.
    names = text | st.sampled_from(["sparkguard.id", "sparkguard.offset", "sparkguard.message"])
    return st.builds(
        Record,
        key=st.none() | BYTES,
        value=st.none() | BYTES,
        headers=st.lists(st.tuples(names, st.none() | BYTES), max_size=5).map(tuple),
        timestamp=TIMES,
        topic=st.none() | text,
        partition=st.none() | COUNTS,
        offset=st.none() | OFFSETS,
        file=st.none() | text,
        columns=st.none() | text,
    )
