"""Replay: a record that is sent back, and what its headers tell of its past.

A record that goes through the flow again is the record as it first came in, with marks behind
its own headers. A letter or a retry that comes of it knows from them how often that happened.
"""

from __future__ import annotations

from collections.abc import Sequence
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

ORIGIN_TOPIC: Final = "sparkguard.origin.topic"
ORIGIN_PARTITION: Final = "sparkguard.origin.partition"
ORIGIN_OFFSET: Final = "sparkguard.origin.offset"
"""Where it first came in, these three."""

_DIGITS: Final = 19
_WRITTEN: Final = (REPLAYS, RETRIES, ORIGIN_TOPIC, ORIGIN_PARTITION, ORIGIN_OFFSET)
_MARKS: Final = frozenset({REDRIVE_ID, *_WRITTEN})

Place = tuple[str | None, int | None, int | None]
"""Topic, partition and offset."""


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
    place = record.topic, record.partition, record.offset
    headers, place, _ = _first(record.headers, place)
    return _with(record, headers, place)


def sent_back(letter: Letter, run: str, *, retry: bool = False) -> Record:
    """The record of a letter as it is to be sent: its coordinates are those of its origin.

    Args:
        run: names this redrive; the id of every record that it sends begins so.
        retry: it was put off, and not dead-lettered: it counts as no replay.
    """
    record = letter.record
    place = record.topic, record.partition, record.offset
    mark = redrive_id(run, letter)
    return _with(record, *marked(record.headers, place, mark, letter.replays, retry=retry))


def marked(
    headers: Sequence[Header], place: Place, mark: str, replayed: int, *, retry: bool = False
) -> tuple[list[Header], Place]:
    """The headers with which a record is sent, and where it first came in; for many of them.

    Args:
        place: where the record came in now.
        mark: the redrive id.
        replayed: how often its letter says that it was sent back.
    """
    own, first, found = _first(headers, place)
    own.append((REDRIVE_ID, mark.encode()))
    sent = replayed + (not retry)
    tried = 0
    if found:
        sent = max(_number(found.get(REPLAYS)) or 0, replayed) + (not retry)
        # Who redrives a letter gives its record all of its delayed retries again.
        tried = (_number(found.get(RETRIES)) or 0) + 1 if retry else 0
    elif retry:
        tried = 1
    facts = (sent or None, tried or None, *first)
    own += [
        (name, str(fact).encode())
        for name, fact in zip(_WRITTEN, facts, strict=True)
        if fact is not None
    ]
    return own, first


def _first(
    headers: Sequence[Header], place: Place
) -> tuple[list[Header], Place, dict[str, bytes | None]]:
    """The record's own headers, where it first came in, and its marks: the first of each name."""
    own = [one for one in headers if one[0] not in _MARKS]
    if len(own) == len(headers):
        return own, place, {}
    marks = {name: value for name, value in reversed(headers) if name in _MARKS}
    if topic := marks.get(ORIGIN_TOPIC):
        partition, offset = (_number(marks.get(one)) for one in (ORIGIN_PARTITION, ORIGIN_OFFSET))
        place = topic.decode("utf-8", "replace"), partition, offset
    return own, place, marks


def _with(record: Record, headers: Sequence[Header], place: Place) -> Record:
    topic, partition, offset = place
    return replace(record, headers=tuple(headers), topic=topic, partition=partition, offset=offset)


def _count(record: Record, name: str) -> int:
    if not record.headers:
        return 0
    return next((_number(value) or 0 for key, value in record.headers if key == name), 0)


def _number(value: bytes | None) -> int | None:
    """A whole number; whatever else stands there was not written here."""
    return int(value) if value and value.isdigit() and len(value) <= _DIGITS else None
