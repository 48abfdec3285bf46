"""The Spark task that runs a pass: who it is, and whether it may still wait."""

from __future__ import annotations

import re
import select
import sys
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, unquote

from sparkguard.filesystem import exists

_SLICE_SECONDS = 0.5
TRY = "sparkguard.try"
"""The local property in which a batch function says how often it was tried."""
TAG = "sparkguard="
"""On Spark Connect a batch function's jobs know their batch by a tag that begins so."""
_TAGGED = re.compile(r"_Tag_sparkguard=([^/,]+)/([^/,]+)/([0-9]+)/([0-9]+)/([^,]*)")


class StoppedError(Exception):
    """The query is being stopped: nothing is delivered from here on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Identity of the running task, and its clock.

    Attributes:
        careful: a worker died before, perhaps of one of this task's records.
    """

    query_id: str | None = None
    query_name: str | None = None
    run_id: str | None = None
    batch_id: int | None = None
    stage_id: int = 0
    partition: int = 0
    attempt: int = 0
    task_attempt_id: int = 0
    stop_marker: str | None = None
    careful: bool = False
    socket: int | None = field(default=None, compare=False)

    @classmethod
    def current(cls, stop_marker: str | None = None) -> Task:
        """The task this worker runs now; identity comes with Spark's task context."""
        from pyspark import TaskContext

        context = TaskContext.get()
        if context is None:
            return cls(stop_marker=stop_marker)
        batch = context.getLocalProperty("streaming.sql.batchId")
        query = context.getLocalProperty("sql.streaming.queryId")
        name = _query_name(context.getLocalProperty("spark.job.description"))
        run = _run_id(context) if query else None
        if query is None and (tagged := _tagged(context.getLocalProperty("spark.job.tags"))):
            query, run, batch, name = tagged
        return cls(
            query_id=query,
            query_name=name,
            run_id=run,
            batch_id=int(batch) if batch is not None else None,
            stage_id=context.stageId(),
            partition=context.partitionId(),
            attempt=context.attemptNumber(),
            careful=context.attemptNumber() > 0,
            task_attempt_id=context.taskAttemptId(),
            stop_marker=stop_marker,
            socket=_spark_socket(),
        )

    def now(self) -> float:
        """Seconds of a clock that only goes forward."""
        return time.monotonic()

    def date(self) -> datetime:
        """The time of day, in UTC."""
        return datetime.now(UTC)

    def wait(self, seconds: float) -> None:
        """Wait, and look twice a second whether waiting still makes sense.

        Raises:
            StoppedError: Spark closed the worker's socket, or the stop marker is set.
        """
        until = self.now() + seconds
        while True:
            left = max(0.0, until - self.now())
            if self._closed_within(min(left, _SLICE_SECONDS)):
                raise StoppedError("Spark closed the worker's socket.")
            if self._marked():
                raise StoppedError("The stop marker is set.")
            if left <= 0:
                return

    def cancelled(self) -> bool:
        """Whether the query is being stopped, as far as a worker can see."""
        return self.given_up() or self._marked()

    def given_up(self) -> bool:
        """Whether Spark waits for this task no longer; a stop that was asked for lets it end."""
        return self._closed_within(0)

    def _marked(self) -> bool:
        try:
            return self.stop_marker is not None and exists(self.stop_marker)
        except Exception as error:
            # A state that cannot be read asks for nothing.
            sys.stderr.write(f"No look for a stop marker: {error!r}\n")
            return False

    def _closed_within(self, seconds: float) -> bool:
        """Sleep so long, or until Spark closes the worker's socket; whether it did."""
        if self.socket is None:
            time.sleep(seconds)
            return False
        poll = select.poll()
        poll.register(self.socket, getattr(select, "POLLRDHUP", 0))
        return bool(poll.poll(int(seconds * 1000)))


def _run_id(context: Any) -> str | None:
    """The query's run, and the try of its batch function: each evaluates the batch anew."""
    run, attempt = context.getLocalProperty("spark.jobGroup.id"), context.getLocalProperty(TRY)
    return f"{run}/{attempt}" if run and attempt else run


def _query_name(description: str | None) -> str | None:
    """A streaming job's description is the query's name, if it has one, then its ids."""
    first = (description or "").replace("<br/>", "\n").partition("\n")[0]
    return None if not first or first.startswith(("id = ", "Spark Connect - ")) else first


def tag(query: Any, batch_id: int, attempt: int) -> str:
    """What says of a job on Spark Connect which try of which batch it belongs to."""
    name = quote(query.name or "", safe="")
    return f"{TAG}{query.id}/{query.runId}/{batch_id}/{attempt}/{name}"


def _tagged(tags: str | None) -> tuple[str, str, str, str | None] | None:
    """The query, its run with the try, the batch and the query's name, as `tag` has written them.

    The batch function runs in a process of its own there, so local properties tell nothing.
    """
    found = _TAGGED.search(tags or "")
    if found is None:
        return None
    query, run, batch, attempt, name = found.groups()
    return query, f"{run}/{attempt}", batch, unquote(name) or None


def _spark_socket() -> int | None:
    """The file descriptor on which Spark talks to this worker.

    PySpark hands it to nobody, so it is found where `pyspark.worker.main` keeps it.
    """
    frame = sys._getframe()  # noqa: SLF001 - the only way to the worker's own variables
    while frame is not None:
        infile = frame.f_locals.get("infile") if frame.f_code.co_name == "main" else None
        if infile is not None:
            try:
                return int(infile.fileno())
            except (AttributeError, OSError, ValueError):
                return None
        frame = frame.f_back  # type: ignore[assignment]  # the outermost frame's is None
    return None
