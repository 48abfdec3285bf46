"""Replay: a record that is sent back, and what its headers tell of its past.

A record that goes through the flow again is the record as it first came in, with marks behind
its own headers. A letter or a retry that comes of it knows from them how often that happened.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from sparkguard.core.letter import Letter
from sparkguard.core.record import Header, Record

REDRIVE_ID: Final = "sparkguard.redrive.id"
"""Who sent the record back, and the letter it was: equal where one is sent twice."""

REPLAYS: Final = "sparkguard.redrive.replays"
"""How often a letter of this record was sent back."""

RETRIES: Final = "sparkguard.retry.attempt"
"""How often the record was put off and came again."""

_ORIGIN: Final = "sparkguard.origin."
_TOPIC, _PARTITION, _OFFSET = (_ORIGIN + name for name in ("topic", "partition", "offset"))
_DIGITS: Final = 19
_MARKS: Final = frozenset({REDRIVE_ID, REPLAYS, RETRIES, _TOPIC, _PARTITION, _OFFSET})


def redrive_id(run: str, letter: Letter) -> str:
    """What a consumer knows a record by that is sent twice."""
    return f"{run}/{letter.id}"


def replays(record: Record) -> int:
    """How often a letter of this record was sent back; 0 without the mark."""
    return _count(record, REPLAYS)


def retries(record: Record) -> int:
    """How often the record was put off and came again; 0 without the mark."""
    return _count(record, RETRIES)


def origin(record: Record) -> Record:
    """The record with the coordinates where it first came in, without marks."""
    marks = {name: value for name, value in record.headers if name in _MARKS and value}
    own = tuple((name, value) for name, value in record.headers if name not in _MARKS)
    if _TOPIC not in marks:
        return replace(record, headers=own)
    return replace(
        record,
        headers=own,
        topic=marks[_TOPIC].decode("utf-8", "replace"),
        partition=_number(marks.get(_PARTITION)),
        offset=_number(marks.get(_OFFSET)),
    )


def sent_back(letter: Letter, run: str, *, retry: bool = False) -> Record:
    """The record of a letter as it is to be sent: its coordinates are those of its origin.

    Args:
        run: names this redrive; the id of every record that it sends begins so.
        retry: it was put off, and not dead-lettered: it counts as no replay.
    """
    record = letter.record
    first = origin(record)
    marks: list[Header] = [(REDRIVE_ID, redrive_id(run, letter).encode())]
    sent = max(replays(record), letter.replays) + (not retry)
    # Who redrives a letter gives its record all of its delayed retries again.
    tried = retries(record) + 1 if retry else 0
    counts = ((REPLAYS, sent), (RETRIES, tried))
    place = ((_TOPIC, first.topic), (_PARTITION, first.partition), (_OFFSET, first.offset))
    marks += [(name, str(count).encode()) for name, count in counts if count]
    marks += [(name, str(part).encode()) for name, part in place if part is not None]
    return replace(first, headers=(*first.headers, *marks))


def _count(record: Record, name: str) -> int:
    if not record.headers:
        return 0
    return next((_number(value) or 0 for key, value in record.headers if key == name), 0)


def _number(value: bytes | None) -> int | None:
    """A whole number; whatever else stands there was not written here."""
    return int(value) if value and value.isdigit() and len(value) <= _DIGITS else None
