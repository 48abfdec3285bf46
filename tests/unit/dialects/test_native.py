from dataclasses import replace

import pytest
from hypothesis import given

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


def test_headers_that_others_append() -> None:
    """What a mirror adds behind the facts is neither a fact nor the record's."""
    letter = sample_letters()[5]
    message = _message(letter)
    mirrored = replace(message, headers=(*message.headers, ("mirror", b"x")))
    assert DIALECT.read(mirrored) == letter
