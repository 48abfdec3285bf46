"""An outcome: what a handler decided. One place enacts it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Continue:
    """Drop the record, count it as skipped, and go on: the record is lost on purpose."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """Store the record as a letter, and go on once its sink has acknowledged it.

    Attributes:
        sink: name of the sink; None is the stage's own.
    """

    sink: str | None = None


@dataclass(frozen=True, slots=True)
class Fail:
    """Fail the task: the query stops, nothing of the batch is committed."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class Restart:
    """Fail the task and let the supervisor start the query again, within its limit."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class RetryLater:
    """Store the record with the time at which it is to come again, and go on.

    It comes back through Kafka, behind what was processed meanwhile: its order is given up.

    Attributes:
        due: not before this time, with a time zone.
        sink: name of the sink that is the retry topic.
    """

    due: datetime
    sink: str


Outcome = Continue | DeadLetter | Fail | Restart | RetryLater
