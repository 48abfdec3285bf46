"""Queries for tests: they answer as Spark's do, follow a script, and need no Spark."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from typing import Any, Final
from uuid import uuid4

BATCH: Final = "batch"
"""A batch was committed and reported; the query rests."""
BUSY: Final = "busy"
"""A batch runs."""
REST: Final = "rest"
"""No batch runs."""
END: Final = "end"
"""The query ends as it should, as one with ``availableNow`` does."""

Act = str | BaseException
"""What a query does next; an exception ends it."""


class FakeQuery:
    """A streaming query that plays one act of its script at each look at `isActive`.

    A script that is over leaves the query at rest. Acts may also be played by hand,
    with `play`.

    Args:
        script: acts in order; an iterator without an end is fine.
        query_id: stays with the checkpoint; give it again to a query that was restarted.
        first_batch: number of the first batch.
        stop_raises: what `stop` raises, once the query is stopped.
        hangs: `stop` returns only when `let_go` is called.
    """

    def __init__(
        self,
        *script: Act,
        acts: Iterable[Act] = (),
        query_id: str | None = None,
        first_batch: int = 0,
        stop_raises: Exception | None = None,
        hangs: bool = False,
    ) -> None:
        self.id = query_id or str(uuid4())
        self.runId = str(uuid4())
        self.name: str | None = None
        self.stops = 0
        self.cut_off = False
        self.progress: dict[str, Any] | None = None
        self._script = _joined(script, acts)
        self._next = first_batch
        self._busy = False
        self._ended = threading.Event()
        self._error: BaseException | None = None
        self._stop_raises = stop_raises
        self._going = threading.Event()
        if not hangs:
            self._going.set()

    @property
    def isActive(self) -> bool:  # noqa: N802 - the name is Spark's
        """Whether it runs; plays the next act first."""
        if not self._over:
            self.play(next(self._script, REST))
        return not self._over

    @property
    def _over(self) -> bool:
        # As with Spark, `stop` takes effect before it returns.
        return self._ended.is_set() or self.stops > 0

    @property
    def status(self) -> dict[str, Any]:
        """As Spark's: whether a batch runs."""
        return {"message": "", "isDataAvailable": self._busy, "isTriggerActive": self._busy}

    @property
    def lastProgress(self) -> dict[str, Any] | None:  # noqa: N802
        """The report of the last committed batch; None before the first."""
        return self.progress

    def play(self, act: Act) -> None:
        """Play one act now."""
        self._busy = act == BUSY
        if act == BATCH:
            self.progress = {"id": self.id, "runId": self.runId, "batchId": self._next}
            self._next += 1
        elif isinstance(act, BaseException):
            self._error = act
            self._ended.set()
        elif act == END:
            self._ended.set()

    def awaitTermination(self, timeout: float | None = None) -> bool | None:  # noqa: N802
        """Wait for the end, and raise what ended it."""
        ended = self._ended.wait(timeout)
        if self._error is not None:
            raise self._error
        return ended if timeout is not None else None

    def exception(self) -> BaseException | None:
        """What ended it, None for a normal end."""
        return self._error

    def stop(self) -> None:
        """End it; a batch that runs is cut off."""
        self.stops += 1
        self.cut_off = self._busy
        self._going.wait()
        self._ended.set()
        if self._stop_raises is not None:
            raise self._stop_raises

    def let_go(self) -> None:
        """Let a `stop` that hangs return."""
        self._going.set()


def _joined(script: Iterable[Act], acts: Iterable[Act]) -> Iterator[Act]:
    yield from script
    yield from acts
