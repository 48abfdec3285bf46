"""A policy: what the settings say for one stage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from sparkguard.core.failure import Cause, Failure
from sparkguard.core.outcome import Outcome

OnNull = Literal["pass", "skip", "fail"]
WholeBatch = Literal["skip", "dead_letter"]
Writes = Literal["append", "upsert", "atomic"]


@runtime_checkable
class Handler(Protocol):
    """Decides what becomes of a failure: pure, frozen, picklable."""

    def decide(self, failure: Failure) -> Outcome:
        """The outcome for `failure`; must not write, wait, count or raise."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """When to try again: transient causes only, within the task timeout.

    Attributes:
        max_attempts: tries in all, the first included; None leaves the limit to the task timeout.
        initial, maximum: bounds of the back-off in seconds; each wait is drawn from
            [0, min(maximum, initial × multiplier^n)] (full jitter, KIP-572's spirit).
    """

    max_attempts: int | None = None
    initial: float = 0.1
    multiplier: float = 2.0
    maximum: float = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """How many records a stage may fail before it stops: it never starts dropping.

    Attributes:
        max_ratio: failed / entered, over the window.
        window: fewest records that a ratio is judged on; spans batches.
        then: ``fail`` or ``restart``.
    """

    max_ratio: float = 0.10
    window: int = 1000
    then: Literal["fail", "restart"] = "fail"


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """One stage's settings, resolved: every handler and sink is a value here.

    Attributes:
        handler: decides about poison.
        on_transient: decides when the retries of a transient cause are used up.
        on_programming, on_fatal: decide about those causes.
        on_crash: decides about a record that ended its process; None leaves it to `on_fatal`.
        by_exception: (qualified class name, handler), the most specific class wins.
        classify: (qualified class name, cause), asked before the built-in classifier.
        sink: name of the sink for outcomes that name none.
        task_timeout: seconds from the first failure without progress in between.
        record_timeout: seconds that one record may take in the stage; None for any number.
        max_calls: of a vectorised function, for one batch whose bad rows are looked for.
        redact: regular expressions; what matches is masked in messages and traces.
    """

    handler: Handler
    on_transient: Handler
    on_programming: Handler
    on_fatal: Handler
    on_crash: Handler | None = None
    by_exception: tuple[tuple[str, Handler], ...] = ()
    classify: tuple[tuple[str, Cause], ...] = ()
    sink: str = "default"
    retry: Retry = Retry()
    task_timeout: float = 300.0
    record_timeout: float | None = None
    budget: Budget | None = Budget()
    on_null: OnNull = "pass"
    redact: tuple[str, ...] = ()
    isolate: bool = False
    max_calls: int = 5_000
    writes: Writes | None = None
    whole_batch: WholeBatch | None = None

    @property
    def goes_on(self) -> bool:
        """Whether the pass goes on after every poison record, whoever decides about it."""
        deciding = (self.handler, *(handler for _, handler in self.by_exception))
        # Of the class itself: a subclass that decides otherwise has not promised it.
        return all(vars(type(handler)).get("goes_on") is True for handler in deciding)

    def handlers(self) -> tuple[Handler, ...]:
        """Every handler that may be asked."""
        named = [handler for _, handler in self.by_exception]
        named += [self.on_crash] if self.on_crash else []
        return (self.handler, self.on_transient, self.on_programming, self.on_fatal, *named)

    def sinks(self) -> set[str]:
        """Names of the sinks that letters may go to: the stage's, and those of its handlers."""
        named = {getattr(handler, "sink", None) for handler in self.handlers()}
        return {self.sink, *(name for name in named if name)}
