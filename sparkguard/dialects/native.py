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
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import ClassVar, Final

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
    "due",
    "state.key",
    "state.version",
    "state",
)
"""The facts in their order; ``exception.types`` is a JSON array, the class and then its bases."""

_ID, _FIRST, _LAST, _MESSAGE, _TRACE, _PATH, _OFFSET, _TIMESTAMP, _FILE, _COLUMNS = (
    PREFIX + name
    for name in (
        "id",
        "first.failed.at",
        "last.failed.at",
        "message",
        "trace",
        "path",
        "offset",
        "timestamp",
        "file",
        "columns",
    )
)
_REPLAYS: Final = PREFIX + "replays"
_OVERFLOW: Final = PREFIX + "overflow"

DUE: Final = PREFIX + "due"
"""The fact by which a retry topic is read."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

_Facts = tuple[Header, ...]


@dataclass(frozen=True, slots=True)
class NativeDialect:
    """Spells every fact of a letter, so that reading gives the same letter back.

    Text that no UTF-8 can hold (lone surrogates) comes back spelled out, a time without a zone
    as UTC.
    """

    prefix: ClassVar[str] = PREFIX

    def headers(self, letter: Letter) -> list[Header]:
        """The record's own headers, then the facts."""
        failure, record = letter.failure, letter.record
        happening, error, place, source = _shared(
            letter.version,
            failure.app,
            failure.flow,
            failure.query_name,
            failure.query_id,
            failure.batch_id,
            failure.stage,
            failure.category,
            failure.cause,
            failure.attempts,
            failure.timed_out,
            failure.exception_types,
            failure.fingerprint,
            failure.payload,
            record.topic,
            record.partition,
        )
        found: list[Header] = [
            (name if name.isascii() else utf8(name), value) for name, value in record.headers
        ]
        found.append((_ID, _bytes(letter.id)))
        found += happening
        first, last = failure.first_failed_at, failure.last_failed_at
        failed = b"" if first is None else _time(first)
        if failed:
            found.append((_FIRST, failed))
        if last is not None:
            found.append((_LAST, failed if last is first else _time(last)))
        found += error
        if failure.message:
            found.append((_MESSAGE, _bytes(failure.message)))
        if failure.trace:
            found.append((_TRACE, _bytes(failure.trace)))
        found += place
        if failure.path:
            found.append((_PATH, _bytes(failure.path)))
        found += source
        _add_rest(found, letter)
        return found

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
        # Deep JSON is refused by a RecursionError.
        except (KeyError, TypeError, ValueError, RecursionError):
            return None


def _add_rest(found: list[Header], letter: Letter) -> None:
    record = letter.record
    if record.offset is not None:
        found.append((_OFFSET, _bytes(str(record.offset))))
    if record.timestamp is not None:
        found.append((_TIMESTAMP, _time(record.timestamp)))
    if record.file is not None:
        found.append((_FILE, _bytes(record.file)))
    if record.columns is not None:
        found.append((_COLUMNS, _bytes(record.columns)))
    if letter.replays:
        found.append((_REPLAYS, _bytes(str(letter.replays))))
    if letter.overflow is not None:
        found.append((_OVERFLOW, _bytes(letter.overflow)))
    if letter.due is not None:
        found.append((DUE, _time(letter.due)))
    failure = letter.failure
    if failure.state_version is not None:
        told = {
            "state.key": failure.state_key or None,
            "state.version": str(failure.state_version),
            "state": failure.state or None,
        }
        found += _spelled(told)


@lru_cache(maxsize=1024)
def _shared(  # noqa: PLR0913, PLR0917 - what it may use must be in the cache's key
    version: str,
    app: str,
    flow: str,
    query_name: str | None,
    query_id: str | None,
    batch_id: int | None,
    stage: str,
    category: Category,
    cause: Cause,
    attempts: int,
    timed_out: bool,  # noqa: FBT001 - likewise
    types: tuple[str, ...],
    fingerprint: str,
    payload: str,
    topic: str | None,
    partition: int | None,
) -> tuple[_Facts, _Facts, _Facts, _Facts]:
    """The facts that many letters have in common, in four runs: between them stand its own."""
    return (
        _spelled(
            {
                "version": version or None,
                "app": app or None,
                "flow": flow or None,
                "query.name": query_name,
                "query.id": query_id,
                "batch.id": _number(batch_id),
                "stage": stage,
                "category": category.value,
                "cause": cause.value,
                "attempts": str(attempts),
                "timed.out": "true" if timed_out else None,
            }
        ),
        _spelled(
            {
                "exception.type": (types[0] or None) if types else None,
                "exception.types": _json(types) if types else None,
            }
        ),
        _spelled({"fingerprint": fingerprint or None}),
        _spelled(
            {
                "payload": payload if payload != "record" else None,
                "topic": topic,
                "partition": _number(partition),
            }
        ),
    )


def _spelled(facts: Mapping[str, str | None]) -> _Facts:
    return tuple((PREFIX + name, _bytes(text)) for name, text in facts.items() if text is not None)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace")


def _letter(facts: Mapping[str, str], message: Record, own: tuple[Header, ...]) -> Letter:
    record = Record(
        key=message.key,
        value=message.value,
        headers=own,
        timestamp=_read_time(facts.get("timestamp")),
        topic=facts.get("topic"),
        partition=_read_number(facts.get("partition"), bits=31),
        offset=_read_number(facts.get("offset")),
        file=facts.get("file"),
        columns=facts.get("columns"),
    )
    return Letter(
        id=facts["id"],
        failure=_failure(facts, record),
        replays=_read_number(facts.get("replays")) or 0,
        version=facts.get("version", ""),
        overflow=facts.get("overflow"),
        due=_read_time(facts.get("due")),
    )


def _failure(facts: Mapping[str, str], record: Record) -> Failure:
    return Failure(
        stage=facts["stage"],
        category=Category(facts["category"]),
        cause=Cause(facts["cause"]),
        exception_types=_read_types(facts.get("exception.types", "[]")),
        message=facts.get("message", ""),
        trace=facts.get("trace", ""),
        fingerprint=facts.get("fingerprint", ""),
        attempts=_read_number(facts["attempts"]) or 0,
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
        state_key=facts.get("state.key", ""),
        state_version=_read_number(facts.get("state.version")),
        state=facts.get("state", ""),
    )


def _json(types: tuple[str, ...]) -> str:
    return json.dumps([utf8(name) for name in types], ensure_ascii=False)


def _number(number: int | None) -> str | None:
    return None if number is None else str(number)


def _read_number(text: str | None, bits: int = 63) -> int | None:
    number = None if text is None else int(text)
    if number is not None and not -(2**bits) <= number < 2**bits:
        raise ValueError(text)
    return number


def _read_types(text: str) -> tuple[str, ...]:
    names = json.loads(text)
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(text)
    return tuple(names)


def _time(when: datetime) -> bytes:
    """What `isoformat` gives, at less than half its cost where many fall into one second."""
    if when.tzinfo is not UTC or type(when) is not datetime:
        return utc(when).isoformat().encode()
    since = when - _EPOCH
    second, fraction = _second(since.days, since.seconds), since.microseconds
    return b"%b.%06d+00:00" % (second, fraction) if fraction else second + b"+00:00"


@lru_cache(maxsize=1024)
def _second(days: int, seconds: int) -> bytes:
    when = _EPOCH + timedelta(days, seconds)
    return when.replace(tzinfo=None).isoformat().encode()


def _read_time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)
