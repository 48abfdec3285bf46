"""native: sparkguard's own headers, ``sparkguard.<fact>``, all of them UTF-8 text.

A letter's facts stand in one block behind the record's own headers, and the block begins with
``sparkguard.id``. So a record that was a letter before, and still carries the facts of then, is
not mistaken: the last block counts, and everything in front of it belongs to the record.
Times are ISO 8601 in UTC. A fact that is empty has no header.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Final

from sparkguard.core.failure import Category, Cause, Failure
from sparkguard.core.instant import utc
from sparkguard.core.letter import Letter
from sparkguard.core.record import Header, Record
from sparkguard.core.text import utf8

PREFIX: Final = "sparkguard."
"""Every fact's header begins so."""

FACTS: Final = (
    "id",
    "version",
    "app",
    "flow",
    "query.name",
    "query.id",
    "batch.id",
    "stage",
    "category",
    "cause",
    "attempts",
    "timed.out",
    "first.failed.at",
    "last.failed.at",
    "exception.type",
    "exception.types",
    "message",
    "trace",
    "fingerprint",
    "path",
    "payload",
    "topic",
    "partition",
    "offset",
    "timestamp",
    "file",
    "columns",
    "replays",
    "overflow",
)
"""The facts in their order; ``exception.types`` is a JSON array, the class and then its bases."""

_NAMES = tuple(PREFIX + name for name in FACTS)


@dataclass(frozen=True, slots=True)
class NativeDialect:
    """Spells every fact of a letter, so that reading gives the same letter back.

    Text that no UTF-8 can hold (lone surrogates) comes back spelled out, a time without a zone
    as UTC.
    """

    def headers(self, letter: Letter) -> list[Header]:
        """The record's own headers, then the facts."""
        own: list[Header] = [(utf8(name), value) for name, value in letter.record.headers]
        facts = _facts(letter)
        own += [
            (name, text.encode("utf-8", "backslashreplace"))
            for name, text in zip(_NAMES, facts, strict=True)
            if text is not None
        ]
        return own

    def read(self, message: Record) -> Letter | None:
        """The letter in a message, or None where no readable block of facts is."""
        starts = [at for at, (name, _) in enumerate(message.headers) if name == PREFIX + "id"]
        if not starts:
            return None
        own, block = message.headers[: starts[-1]], message.headers[starts[-1] :]
        try:
            facts = {
                name.removeprefix(PREFIX): value.decode()
                for name, value in block
                if name.startswith(PREFIX) and value is not None
            }
            return _letter(facts, message, own)
        except (KeyError, TypeError, ValueError):
            return None


def _facts(letter: Letter) -> tuple[str | None, ...]:
    failure, record = letter.failure, letter.record
    types = failure.exception_types
    return (
        letter.id,
        letter.version or None,
        failure.app or None,
        failure.flow or None,
        failure.query_name,
        failure.query_id,
        _number(failure.batch_id),
        failure.stage,
        failure.category.value,
        failure.cause.value,
        str(failure.attempts),
        "true" if failure.timed_out else None,
        _time(failure.first_failed_at),
        _time(failure.last_failed_at),
        failure.exception_type or None,
        _json(types) if types else None,
        failure.message or None,
        failure.trace or None,
        failure.fingerprint or None,
        failure.path or None,
        failure.payload if failure.payload != "record" else None,
        record.topic,
        _number(record.partition),
        _number(record.offset),
        _time(record.timestamp),
        record.file,
        record.columns,
        str(letter.replays) if letter.replays else None,
        letter.overflow,
    )


def _letter(facts: Mapping[str, str], message: Record, own: tuple[Header, ...]) -> Letter:
    record = Record(
        key=message.key,
        value=message.value,
        headers=own,
        timestamp=_read_time(facts.get("timestamp")),
        topic=facts.get("topic"),
        partition=_read_number(facts.get("partition")),
        offset=_read_number(facts.get("offset")),
        file=facts.get("file"),
        columns=facts.get("columns"),
    )
    return Letter(
        id=facts["id"],
        failure=_failure(facts, record),
        replays=int(facts.get("replays", "0")),
        version=facts.get("version", ""),
        overflow=facts.get("overflow"),
    )


def _failure(facts: Mapping[str, str], record: Record) -> Failure:
    return Failure(
        stage=facts["stage"],
        category=Category(facts["category"]),
        cause=Cause(facts["cause"]),
        exception_types=tuple(json.loads(facts.get("exception.types", "[]"))),
        message=facts.get("message", ""),
        trace=facts.get("trace", ""),
        fingerprint=facts.get("fingerprint", ""),
        attempts=int(facts["attempts"]),
        first_failed_at=_read_time(facts.get("first.failed.at")),
        last_failed_at=_read_time(facts.get("last.failed.at")),
        timed_out=facts.get("timed.out") == "true",
        record=record,
        app=facts.get("app", ""),
        flow=facts.get("flow", ""),
        query_name=facts.get("query.name"),
        query_id=facts.get("query.id"),
        batch_id=_read_number(facts.get("batch.id")),
        path=facts.get("path", ""),
        payload=facts.get("payload", "record"),
    )


@lru_cache(maxsize=256)
def _json(types: tuple[str, ...]) -> str:
    return json.dumps([utf8(name) for name in types], ensure_ascii=False)


def _number(number: int | None) -> str | None:
    return None if number is None else str(number)


def _read_number(text: str | None) -> int | None:
    return None if text is None else int(text)


def _time(when: datetime | None) -> str | None:
    return None if when is None else utc(when).isoformat()


def _read_time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)
