"""A DataFrame as a batch function sees it, without Spark behind it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from sparkguard.testing.clock import ManualClock


class Py4JJavaError(Exception):
    """Named and worded as py4j's, of which the driver knows the name only."""


Py4JJavaError.__module__ = "py4j.protocol"
Py4JJavaError.__qualname__ = "Py4JJavaError"


def interrupted(java: str = "java.lang.InterruptedException: sleep interrupted") -> Exception:
    """What a call into the JVM raises when Spark stops the query."""
    return Py4JJavaError(
        f"An error occurred while calling z:java.lang.Thread.sleep.\n: {java}\n"
        "\tat java.base/java.lang.Thread.sleep0(Native Method)\n"
        "\tat java.base/java.lang.Thread.sleep(Thread.java:509)\n"
    )


@dataclass
class FakeFrame:
    """Rows by number only. Its JVM sleeps by moving the clock, or as `sleep` says."""

    clock: ManualClock = field(default_factory=ManualClock)
    query_id: str | None = "q"
    columns: tuple[str, ...] = ("id", "total")
    rows: int = 10
    sleep: Callable[[int], None] | None = None
    slept: list[int] = field(default_factory=list)

    def drop(self, name: str) -> FakeFrame:
        """The frame without a column."""
        left = tuple(column for column in self.columns if column != name)
        return FakeFrame(clock=self.clock, query_id=self.query_id, columns=left, rows=self.rows)

    def count(self) -> int:
        """How many rows it has."""
        return self.rows

    @property
    def sparkSession(self) -> Any:  # noqa: N802 - the name is Spark's
        """As much of a session as a batch function needs."""
        thread = SimpleNamespace(sleep=self._sleep)
        jvm = SimpleNamespace(java=SimpleNamespace(lang=SimpleNamespace(Thread=thread)))
        properties = {"sql.streaming.queryId": self.query_id}
        context = SimpleNamespace(
            getLocalProperty=properties.get, setLocalProperty=properties.__setitem__, _jvm=jvm
        )
        return SimpleNamespace(sparkContext=context)

    def _sleep(self, milliseconds: int) -> None:
        self.slept.append(milliseconds)
        if self.sleep is not None:
            self.sleep(milliseconds)
        self.clock.advance(milliseconds / 1000)
