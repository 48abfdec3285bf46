"""A failure: what went wrong, where, of what kind, and with which record."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from datetime import datetime
from enum import StrEnum
from typing import Any

from sparkguard.core.record import Record


class Category(StrEnum):
    """Where it went wrong; follows from the kind of the stage."""

    DESERIALIZATION = "deserialization"
    PROCESSING = "processing"
    PRODUCTION = "production"


class Cause(StrEnum):
    """What kind of thing it is."""

    POISON = "poison"
    """This record will fail again."""
    TRANSIENT = "transient"
    """An outage or a timeout: it may pass."""
    PROGRAMMING = "programming"
    """The code is wrong, whatever the record."""
    FATAL = "fatal"
    """The process is in trouble: out of memory, asked to exit, killed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Everything a handler may know; picklable, the live exception stays behind.

    Attributes:
        exception_types: qualified names of the exception's class and its bases, nearest first.
        message: bounded and redacted text of the exception.
        trace: bounded and redacted stack trace.
        fingerprint: equal for failures of one type at one place in the code.
        attempts: how often the stage was tried with this record.
        timed_out: retrying ended because the task timeout was used up.
        path: which element of the record failed (``partial`` stages only).
        payload: ``record`` (what came in) or ``row`` (what reached a stage behind the flow).
        state_key: of a stateful stage, the key whose state was to change, shortened.
        state_version: the state's version, which stays.
        state: a bounded and redacted excerpt of the state as JSON.
        exception: the live exception; None in another process, and where failures are
            decided about in groups.
    """

    stage: str
    category: Category
    cause: Cause
    exception_types: tuple[str, ...]
    message: str = ""
    trace: str = ""
    fingerprint: str = ""
    attempts: int = 1
    first_failed_at: datetime | None = None
    last_failed_at: datetime | None = None
    timed_out: bool = False
    record: Record = Record()
    app: str = ""
    flow: str = ""
    query_name: str | None = None
    query_id: str | None = None
    batch_id: int | None = None
    path: str = ""
    payload: str = "record"
    state_key: str = ""
    state_version: int | None = None
    state: str = ""
    exception: BaseException | None = field(default=None, compare=False, repr=False)

    @property
    def exception_type(self) -> str:
        """Qualified name of the exception's class."""
        return self.exception_types[0] if self.exception_types else ""

    def let_go(self) -> None:
        """Drop the live exception, once everything that may look at it has.

        Its traceback holds the frames below it, and through them every value of the batch:
        a buffered letter would keep ten thousand objects alive. It is taken from the exception
        too: user code may raise one object for each bad record, which would gather them all.
        """
        if self.exception is not None:
            BaseException.with_traceback(self.exception, None)
        object.__setattr__(self, "exception", None)

    def __reduce__(self) -> tuple[Any, ...]:
        kept = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "exception"}
        return _failure, (kept,)


def _failure(kept: dict[str, Any]) -> Failure:
    return Failure(**kept)
