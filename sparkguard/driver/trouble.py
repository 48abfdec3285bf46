"""An exception on the driver, read: what Spark tells of it, and what a worker hid in its text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sparkguard.core.classify import classify, classify_text
from sparkguard.core.failure import Cause
from sparkguard.errors import SinkError, StageFailedError

_STOPPED = (
    "java.lang.InterruptedException",
    "java.nio.channels.ClosedByInterruptException",
    "java.io.InterruptedIOException",
    "java.lang.InterruptedException: sleep interrupted",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """What an exception on the driver means.

    Attributes:
        error: the exception itself.
        decided: the failure of a guarded stage behind it, already decided about.
        cause: what kind of thing it is.
        stopped: the query is being stopped; no failure at all (P12).
    """

    error: BaseException
    cause: Cause
    decided: StageFailedError | None = None
    stopped: bool = False

    @property
    def restartable(self) -> bool:
        """Whether a supervisor may start the query again (P14)."""
        if self.decided is not None:
            return self.decided.action == "restart"
        return self.cause is Cause.TRANSIENT


def read(error: BaseException, extra: Sequence[tuple[str, Cause]] = ()) -> Trouble:
    """What an exception means; never raises."""
    text = text_of(error)
    if isinstance(error, StageFailedError):
        decided: StageFailedError | None = error
    else:
        decided = StageFailedError.find(text)
    if decided is not None:
        cause = Cause(str(decided.facts.get("cause", Cause.POISON)))
        return Trouble(
            error=error, cause=cause, decided=decided, stopped=decided.action == "stop"
        )
    stopped = isinstance(error, Exception) and any(mark in text for mark in _STOPPED)
    if isinstance(error, SinkError):
        cause = Cause.TRANSIENT if error.retriable else Cause.POISON
    else:
        cause = classify(error, extra)
        if cause is Cause.POISON:
            cause = classify_text(text) or cause
    return Trouble(error=error, cause=cause, stopped=stopped)


def text_of(error: BaseException) -> str:
    """The exception's text, empty where it has none that can be printed."""
    try:
        return str(error)
    except BaseException:  # noqa: BLE001 - an exception whose str raises is still an exception
        return ""
