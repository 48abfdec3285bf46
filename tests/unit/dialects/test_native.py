from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkguard.core.failure import Category, Cause
from sparkguard.core.letter import Letter
from sparkguard.core.record import Record
from sparkguard.core.text import utf8
from sparkguard.dialects.base import Dialect
from sparkguard.dialects.native import FACTS, PREFIX, NativeDialect
from sparkguard.testing import sample_letters
from tests.support.letters import ANY, letters

DIALECT: Dialect = NativeDialect()


def _message(letter: Letter) -> Record:
    headers = tuple(DIALECT.headers(letter))
    record = letter.record
    return Record(key=record.key, value=record.value, headers=headers, topic="dead", offset=1)


@given(letters())
def test_round_trip(letter: Letter) -> None:
    """Reading the headers gives the letter back, also that of a record that was one before."""
    assert DIALECT.read(_message(letter)) == letter


@given(letters())
def test_own_headers_come_first(letter: Letter) -> None:
    """The record's headers keep their order, their doubles and their nulls."""
    own = letter.record.headers
    assert tuple(DIALECT.headers(letter)[: len(own)]) == own


@given(letters(ANY))
def test_headers_are_utf8(letter: Letter) -> None:
    """P17: every fact is valid UTF-8, whatever the exception said, and can be read."""
    for name, value in DIALECT.headers(letter)[len(letter.record.headers) :]:
        assert value is not None
        value.decode("utf-8")
        assert name.removeprefix(PREFIX) in FACTS
    found = DIALECT.read(_message(letter))
    assert found is not None
    assert found.failure.message == utf8(letter.failure.message)


@given(letters(ANY))
def test_facts_keep_their_order(letter: Letter) -> None:
    """The block begins with the id, and its facts stand in the documented order."""
    block = DIALECT.headers(letter)[len(letter.record.headers) :]
    names = [name.removeprefix(PREFIX) for name, _ in block]
    assert names[0] == "id"
    assert names == [name for name in FACTS if name in names]


@pytest.mark.parametrize(
    "facts",
    [
        {"app": "other"},
        {"flow": "other"},
        {"stage": "other"},
        {"query_name": "other"},
        {"query_id": "other"},
        {"batch_id": 7_000},
        {"category": Category.PRODUCTION},
        {"cause": Cause.FATAL},
        {"attempts": 7_000},
        {"timed_out": True},
        {"exception_types": ("other",)},
        {"exception_types": ()},
        {"fingerprint": "other"},
        {"path": "other"},
        {"payload": "row"},
        {"message": "other"},
        {"trace": "other"},
    ],
)
def test_alike_but_for_one_fact(facts: dict[str, Any]) -> None:
    """What one letter leaves in the cache is not taken for the next one's."""
    first = sample_letters()[0]
    second = replace(first, failure=replace(first.failure, **facts))
    assert first != second
    assert [DIALECT.read(_message(one)) for one in (first, second)] == [first, second]


@pytest.mark.parametrize("facts", [{"topic": "other"}, {"partition": 7_000}, {"offset": 7_000}])
def test_alike_but_for_one_coordinate(facts: dict[str, Any]) -> None:
    """Likewise for where the record lay."""
    first = sample_letters()[0]
    failure = replace(first.failure, record=replace(first.record, **facts))
    second = replace(first, failure=failure)
    assert first != second
    assert [DIALECT.read(_message(one)) for one in (first, second)] == [first, second]


@given(st.datetimes(timezones=st.just(UTC)))
def test_times_in_utc(when: datetime) -> None:
    """A time is spelled as `isoformat` does, in every year and with or without a fraction."""
    letter = sample_letters()[0]
    failure = replace(letter.failure, first_failed_at=when, last_failed_at=when)
    found = dict(DIALECT.headers(replace(letter, failure=failure)))
    assert found["sparkguard.first.failed.at"] == when.isoformat().encode()
    assert found["sparkguard.last.failed.at"] == when.isoformat().encode()


def test_twice_a_letter() -> None:
    """A record that failed, was sent back and failed again: the last facts count, all are kept."""
    first = replace(sample_letters()[0], replays=0)
    again = replace(
        first.record, headers=tuple(DIALECT.headers(first)), topic=None, offset=None, partition=None
    )
    second = replace(first, id="2", failure=replace(first.failure, record=again, message=""))
    found = DIALECT.read(_message(second))
    assert found == second
    assert found is not None
    assert found.record.offset is None
    assert DIALECT.read(Record(headers=found.record.headers)) is not None


@pytest.mark.parametrize(
    "headers",
    [
        (),
        (("a", b"b"),),
        (("sparkguard.id", b"1"),),
        (("sparkguard.id", None),),
        (("sparkguard.id", b"1"), ("sparkguard.stage", b"\xff")),
    ],
)
def test_no_letter(headers: tuple[tuple[str, bytes | None], ...]) -> None:
    """A message that is no letter gives None, not an exception."""
    assert DIALECT.read(Record(headers=headers)) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("partition", b"9999999999"),
        ("attempts", b"9" * 20),
        ("batch.id", b"-" + b"9" * 20),
        ("exception.types", b"[1]"),
        ("exception.types", b"[null]"),
        ("exception.types", b"3"),
        ("exception.types", b"[" * 100_000),
    ],
)
def test_a_fact_that_no_letter_has(name: str, value: bytes) -> None:
    """A block with a fact that no column holds is no letter: the others of the topic are read."""
    message = _message(sample_letters()[0])
    found = dict(message.headers) | {f"sparkguard.{name}": value}
    assert DIALECT.read(replace(message, headers=tuple(found.items()))) is None


def test_headers_that_others_append() -> None:
    """What a mirror adds behind the facts is neither a fact nor the record's."""
    letter = sample_letters()[5]
    message = _message(letter)
    mirrored = replace(message, headers=(*message.headers, ("mirror", b"x")))
    assert DIALECT.read(mirrored) == letter
