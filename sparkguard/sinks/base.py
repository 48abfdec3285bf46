"""The contract of a sink.

A sink is a frozen, picklable dataclass of settings; its fields are what users
write in YAML (``sinks: {name: {type: …, option: …}}``). In a worker's task
`open` gives a writer:

* `Writer.write` takes a letter and may buffer it; memory stays bounded.
* `Writer.flush` returns only when every letter written so far is stored for
  good (acknowledged), and raises `SinkError` otherwise: the task then fails.
* `Writer.close` frees what `open` took and drops what was not flushed.

A letter may be stored more than once (a task is tried again), never less; a
file is never replaced. Nothing is opened before `open`, which runs after the
worker's fork.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from sparkguard.core.letter import Letter


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkTask:
    """Who writes: the app and the worker's task, for unique names; and the other sinks.

    Attributes:
        name: the sink's name in the settings.
        sinks: all sinks of the settings by name, for `overflow:`.
        cancelled: whether the task is being stopped; a writer that waits asks at least
            once a second, and ends its `flush` with `SinkError`.
    """

    app: str = "app"
    name: str = "default"
    batch_id: int | None = None
    stage_id: int = 0
    partition: int = 0
    attempt: int = 0
    task_attempt_id: int = 0
    sinks: Mapping[str, Sink] = field(default_factory=dict)
    cancelled: Callable[[], bool] | None = field(default=None, compare=False, repr=False)


@runtime_checkable
class Writer(Protocol):
    """Takes the letters of one task."""

    def write(self, letter: Letter) -> None:
        """Take a letter; it may be buffered until `flush`."""
        ...

    def flush(self) -> None:
        """Return when every letter written is stored for good, else raise `SinkError`."""
        ...

    def close(self) -> None:
        """Free resources; letters not flushed are dropped. Never raises."""
        ...


@runtime_checkable
class Sink(Protocol):
    """Settings of a place where letters rest."""

    def open(self, task: SinkTask) -> Writer:
        """A writer for one task; may raise `SinkError`."""
        ...

    def check(self, name: str, source_topics: frozenset[str]) -> None:
        """Fail early on the driver when a query is built: unreachable, missing, or its own input.

        Raises:
            ConfigError: the settings cannot work.
            SinkError: the place cannot be reached.
        """
        ...

    def refuses(self, letter: Letter) -> str | None:
        """Why this letter must not be written here (it came from here), or None."""
        ...
