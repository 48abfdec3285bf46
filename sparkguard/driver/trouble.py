"""An exception on the driver, read: what Spark tells of it, and what a worker hid in its text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sparkguard.core.classify import classify
from sparkguard.core.failure import Cause
from sparkguard.core.fingerprint import type_names
from sparkguard.core.jvm import carried_cause, classify_text
from sparkguard.core.known import WORKER_DIED
from sparkguard.errors import StageFailedError

_LINKS = 32
_OF_SPARK = ("py4j.protocol.", "pyspark.errors.")
_STOPPED = re.compile(
    r"^(?:: |Caused by: )"
    r"java\.(?:lang\.InterruptedException|io\.InterruptedIOException"
    r"|nio\.channels\.ClosedByInterruptException)\b",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """What an exception on the driver means.

    Attributes:
        error: the exception itself.
        decided: the failure of a guarded stage behind it, already decided about.
        cause: what kind of thing it is.
        stopped: the query is being stopped; no failure at all (P12).
        crashed: a Python worker ended, and nobody knows of which record.
    """

    error: BaseException
    cause: Cause
    decided: StageFailedError | None = None
    stopped: bool = False
    crashed: bool = False

    @property
    def restartable(self) -> bool:
        """Whether a supervisor may start the query again (P14)."""
        if self.decided is not None:
            return self.decided.action == "restart"
        return self.cause is Cause.TRANSIENT


def read(error: BaseException, extra: Sequence[tuple[str, Cause]] = ()) -> Trouble:
    """What an exception means; never raises."""
    text = text_of(error)
    decided = error if isinstance(error, StageFailedError) else StageFailedError.find(text)
    if decided is not None:
        stopped = decided.action == "stop"
        # Facts of another version may name no cause; what they decided still stands.
        cause = carried_cause(decided) or Cause.POISON
        # A batch function meets what its worker met, and decides about it first.
        crashed = cause is Cause.FATAL and WORKER_DIED in text
        return Trouble(error=error, cause=cause, decided=decided, stopped=stopped, crashed=crashed)
    cause = classify(error, extra)
    if cause is Cause.POISON:
        cause = classify_text(text) or cause
    crashed = cause is Cause.FATAL and WORKER_DIED in text
    return Trouble(error=error, cause=cause, stopped=_interrupted(error), crashed=crashed)


def text_of(error: BaseException) -> str:
    """The exception's text, empty where it has none that can be printed."""
    try:
        return str(error)
    except BaseException:
        # An exception whose str raises is still an exception.
        return ""


def _interrupted(error: BaseException) -> bool:
    """Whether Java was interrupted somewhere behind it, as when Spark stops a query.

    Only what Spark raised says so: a record's text may name any exception it likes.
    """
    return isinstance(error, Exception) and any(
        _STOPPED.search(text_of(link)) for link in _chain(error) if _of_spark(link)
    )


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen and len(seen) < _LINKS:
        seen.add(id(link))
        yield link
        link = link.__cause__ or link.__context__


def _of_spark(error: BaseException) -> bool:
    return any(name.startswith(_OF_SPARK) for name in type_names(type(error)))
