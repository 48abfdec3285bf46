"""A record that is sent back, and what its headers tell."""

from dataclasses import replace

from sparkguard.core.failure import Category, Cause, Failure
from sparkguard.core.letter import Letter
from sparkguard.core.record import Record
from sparkguard.core.replay import REDRIVE_ID, origin, replays, retries, sent_back
from sparkguard.dialects.native import NativeDialect

RECORD = Record(key=b"k", value=b"v", headers=(("h", None),), topic="in", partition=1, offset=7)


def letter(record: Record, name: str = "a") -> Letter:
    """What a flow writes of a record."""
    failure = Failure(
        stage="price",
        category=Category.PROCESSING,
        cause=Cause.POISON,
        exception_types=("ValueError",),
        record=record,
    )
    return Letter(id=name, failure=failure, replays=replays(record))


def test_it_is_the_record_with_marks() -> None:
    """Key, value and own headers are untouched; the marks stand behind them."""
    sent = sent_back(letter(RECORD), "run")
    assert replace(sent, headers=sent.headers[:1]) == RECORD
    assert (REDRIVE_ID, b"run/a") in sent.headers
    assert (replays(sent), retries(sent)) == (1, 0)


def test_replays_are_counted_and_the_first_origin_stays() -> None:
    """However often it goes round, marks do not pile up."""
    record = RECORD
    for times in range(1, 5):
        sent = sent_back(letter(record), "run")
        assert (replays(sent), len(sent.headers)) == (times, 6)
        record = replace(sent, topic="again", partition=0, offset=times)
    assert origin(record) == RECORD


def test_a_letter_that_does_not_count() -> None:
    """In another tool's dialect a letter has no count: the marks of its record have one."""
    once = sent_back(letter(RECORD), "run")
    again = sent_back(replace(letter(once), replays=0), "run")
    assert replays(again) == 2
    assert replays(sent_back(replace(letter(RECORD), replays=5), "run")) == 6


def test_a_retry_is_no_replay() -> None:
    """Retries are counted for themselves; a redrive begins them anew."""
    once = sent_back(letter(RECORD), "retry", retry=True)
    twice = sent_back(letter(once), "retry", retry=True)
    assert (retries(twice), replays(twice)) == (2, 0)
    assert (retries(sent_back(letter(twice), "run")), replays(sent_back(letter(twice), "run"))) == (
        0,
        1,
    )


def test_a_letter_of_it_is_read_back() -> None:
    """The marks are no facts of the letter that a topic holds."""
    sent = replace(sent_back(letter(RECORD), "run"), topic="again", partition=0, offset=3)
    dialect = NativeDialect()
    stored = letter(sent, "b")
    message = replace(sent, headers=tuple(dialect.headers(stored)), topic="dead", offset=0)
    assert dialect.read(message) == stored


def test_what_others_wrote_is_no_count() -> None:
    """A header of that name that holds something else counts nothing, and raises nothing."""
    for value in (b"", b"x", b"-1", b"9" * 50, None):
        assert replays(replace(RECORD, headers=(("sparkguard.redrive.replays", value),))) == 0
    strange = replace(RECORD, headers=(("sparkguard.origin.topic", b"\xff"),))
    assert origin(strange).partition is None
