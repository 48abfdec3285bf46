"""The contract of a dialect, and what the dialects of other tools have in common.

A dialect turns the facts of a letter into Kafka headers and reads them back.
The record's own headers stay in front, untouched; the value is the original
bytes and is no business of the dialect.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final, Protocol, runtime_checkable

from sparkguard.core.failure import Failure
from sparkguard.core.letter import Letter, letter_id
from sparkguard.core.record import Header, Record
from sparkguard.core.text import utf8

_DIGITS: Final = 20


@runtime_checkable
class Dialect(Protocol):
    """Spells a letter's facts as headers."""

    def headers(self, letter: Letter) -> list[Header]:
        """The record's own headers, then the letter's facts."""
        ...

    def read(self, message: Record) -> Letter | None:
        """The letter in a message of the dead-letter topic, or None if it is none of this dialect.

        `message` is the Kafka message as it lies in the dead-letter topic; the
        letter's record has the original coordinates and headers.
        """
        ...


def appended(record: Record, facts: Iterable[Header]) -> list[Header]:
    """The record's own headers, names as text that Kafka takes, then the facts."""
    return [(utf8(name), value) for name, value in record.headers] + list(facts)


def taken(
    message: Record, names: Collection[str]
) -> tuple[dict[str, bytes | None], tuple[Header, ...]]:
    """The last header of each of these names, and all headers but those.

    Tools append, and a record that failed twice has the headers of both times; the last one is
    that of the failure at hand, the ones before it belong to the record.
    """
    found: dict[str, bytes | None] = {}
    own: list[Header] = []
    for name, value in reversed(message.headers):
        if name in names and name not in found:
            found[name] = value
        else:
            own.append((name, value))
    return found, tuple(reversed(own))


def foreign(message: Record, failure: Failure) -> Letter:
    """The letter of a tool that gives no id: made from coordinates, content and exception.

    Where the origin is unknown, the message's own place makes the id: two messages are two letters.
    """
    record = failure.record
    known = None not in {record.topic, record.partition, record.offset}
    place: dict[str, Any] = {
        name: getattr(message, name) for name in ("topic", "partition", "offset")
    }
    named = failure if known else replace(failure, record=replace(record, **place))
    # Such a tool may set a record aside twice: for two apps, or for two of its children.
    error = f"{failure.exception_type}\1{failure.message}"
    return Letter(id=letter_id(replace(named, path=error)), failure=failure)


def as_it_was(
    message: Record, own: tuple[Header, ...], facts: Mapping[str, bytes | None], prefix: str
) -> Record:
    """The record of a tool that leaves key, value and timestamp in the message.

    Its coordinates are decimal numbers in headers that begin with `prefix`.
    """
    return replace(
        message,
        headers=own,
        topic=text(facts.get(f"{prefix}topic")) or None,
        partition=whole(facts.get(f"{prefix}partition"), bits=31),
        offset=whole(facts.get(f"{prefix}offset")),
    )


def text(value: bytes | None) -> str:
    """A header's text; what is no UTF-8 is spelled out, none is empty."""
    return "" if value is None else value.decode("utf-8", "backslashreplace")


def whole(value: bytes | None, *, bits: int = 63) -> int | None:
    """A header's decimal number; None where it is none of so many bits, or -1: unknown."""
    said = text(value)
    if not (said.isascii() and said.isdigit() and len(said) < _DIGITS):
        return None
    number = int(said)
    return number if number < 2**bits else None


def spelled(value: object) -> bytes | None:
    """Text or a number as UTF-8; None for None and for empty text."""
    said = "" if value is None else str(value)
    return said.encode("utf-8", "backslashreplace") if said else None
