"""The contract of a dialect.

A dialect turns the facts of a letter into Kafka headers and reads them back.
The record's own headers stay in front, untouched; the value is the original
bytes and is no business of the dialect.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from sparkguard.core.letter import Letter
from sparkguard.core.record import Header, Record


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
