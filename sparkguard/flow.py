"""A flow: consecutive record stages, compiled into one Arrow pass over a DataFrame."""

from __future__ import annotations

import functools
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sparkguard import pickling
from sparkguard.core.decide import not_stored
from sparkguard.core.policy import Policy
from sparkguard.core.shape import Shape
from sparkguard.errors import SinkError, StageError, StageFailedError
from sparkguard.executor.entry_folder import EntryFolder
from sparkguard.executor.plan import Layout, Plan
from sparkguard.frame import Arranger, is_raw, source_topics
from sparkguard.handlers.retry_later import RetryLaterHandler
from sparkguard.sinks.base import Sink
from sparkguard.stages.base import Stage
from sparkguard.stages.types import spark_type
from sparkguard.steps import steps_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sparkguard.driver.mailbox import Mailbox


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """What a guard gives its flows.

    Attributes:
        breaches: folder of what tasks are to know of their query.
        redrive: the topic that letters are sent back to, if one is set.
        mailbox: makes the way back for the workers' counts; None where there is none.
        streams: told the use token of every flow that reads a stream.
        check: looks at sinks and source before a frame is read; raises what makes it impossible.
    """

    app: str
    sinks: dict[str, Sink]
    stop_marker: str
    breaches: str
    redrive: str | None
    mailbox: Callable[[Any], Mailbox | None]
    streams: Callable[[str], None]
    check: Callable[[DataFrame, Sequence[str]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """Record stages as one function from DataFrame to DataFrame: ``df.transform(flow)``.

    Attributes:
        shape: the type of what the last stage gives; one column a field.
    """

    name: str
    stages: tuple[Stage[Any, Any], ...]
    carry: tuple[Any, ...]
    policies: dict[str, Policy] = field(repr=False)
    shape: Shape = field(repr=False)
    bound: Bound = field(repr=False)

    def __call__(self, frame: DataFrame) -> DataFrame:
        """The guarded frame; nothing is read until Spark evaluates it.

        Raises:
            StageError: the frame has not what the first stage reads.
            ConfigError, SinkError: a sink cannot take this flow's letters.
            SourceError: no broker of the Kafka stream answers.
        """
        if not hasattr(frame, "mapInArrow"):
            kind = type(frame).__name__
            raise StageError(f"Flow {self.name!r} takes a DataFrame, not {kind}.")
        self.bound.check(frame, sinks_of(self.policies.values(), self.bound.sinks))
        reads_value = self.stages[0].kind == "deserialize"
        arranged = Arranger(frame, self.name, reads_value=reads_value).arrange(self.carry)
        self._check_retry_later(arranged.layout)
        self._check_redrive(frame, arranged.layout)
        columns = None if reads_value else arranged.layout.rows
        plan = Plan(
            app=self.bound.app,
            flow=self.name,
            use=uuid.uuid4().hex,
            steps=steps_of(self.stages, self.policies, columns),
            layout=arranged.layout,
            shape=self.shape,
            sinks=self.bound.sinks,
            stop_marker=self.bound.stop_marker,
            breaches=self.bound.breaches,
            zone=frame.sparkSession.conf.get("spark.sql.session.timeZone") or "UTC",
        )
        if frame.isStreaming:
            self.bound.streams(plan.use)
        mailbox = self.bound.mailbox(frame.sparkSession)
        slot = None if mailbox is None else mailbox.slot
        schema = spark_type(self.shape)
        for column in arranged.repeated:
            if column.name in schema.names:
                raise StageError(
                    f"Flow {self.name!r} gives {column.name!r} and is to carry it too."
                )
            schema = schema.add(column)
        return arranged.frame.mapInArrow(functools.partial(_run, packed(plan, plan), slot), schema)

    def _check_redrive(self, frame: DataFrame, layout: Layout) -> None:
        """Refuse records that were sent back without what counts how often: they would for ever."""
        if layout.headers is not None or self.bound.redrive not in source_topics(frame):
            return
        # What another flow has made is sent back as the record that came into that one, or not.
        if layout.topic is not None or (layout.value is not None and is_raw(frame)):
            raise StageError(
                f"Flow {self.name!r} reads {self.bound.redrive!r}, to which letters are sent back, "
                "and headers count how often a record was: set the option includeHeaders to true, "
                "and keep Kafka's columns up to the flow."
            )

    def _check_retry_later(self, layout: Layout) -> None:
        """Refuse a `retry_later` that would send back less than came in, or for ever."""
        later = [
            stage
            for stage in self.stages
            if any(isinstance(h, RetryLaterHandler) for h in self.policies[stage.name].handlers())
        ]
        for stage in later:
            if None in {layout.topic, layout.value}:
                problem = "sends records back to Kafka, and this frame is not read from there"
            elif layout.headers is None:
                problem = (
                    "counts in headers how often a record came back, and this frame has none: set "
                    "the option includeHeaders to true"
                )
            elif stage.partial:
                problem = "sends whole records back: elements that got through would come twice"
            else:
                continue
            raise StageError(f"'retry_later' {problem}.", stage=stage.name)


def sinks_of(policies: Iterable[Policy], sinks: dict[str, Sink]) -> list[str]:
    """The sinks that letters may go to under these policies."""
    found = {name for policy in policies for name in policy.sinks()}
    overflows = {getattr(sinks.get(name), "overflow", None) for name in found}
    return sorted(found | {name for name in overflows if name})


def packed(plan: Plan, whole: Any) -> bytes:
    """A plan, or a whole that it is in, as it travels.

    Raises:
        StageError: it cannot; names the stage.
    """
    try:
        return pickling.dumps(whole)
    except Exception as error:
        for step in plan.steps:
            try:
                pickling.dumps(step)
            except Exception as own:
                raise StageError(
                    f"it cannot travel to the workers: {own}. Make inside the function what "
                    "belongs to the driver (locks, clients, the session), or move it to a module.",
                    stage=step.name,
                ) from own
        raise StageError(f"Flow {plan.flow!r} cannot travel to the workers: {error}.") from error


def _run(work: bytes, slot: Any, batches: Iterable[Any]) -> Iterator[Any]:
    """What Spark calls in the worker, once a task."""
    from sparkguard.executor.flow_pass import run

    plan = pickling.loads_on_worker(work)

    def count(entry: Any) -> None:
        try:
            slot.add([entry])
        except Exception as error:
            # Records that nobody counted must come again, as letters that nobody stored.
            problem = f"the state did not take the task's counts: {error!r}."
            told = SinkError(problem, sink="state", retriable=True)
            raise not_stored(plan.app, plan.flow, told) from error

    try:
        yield from run(plan, None if slot is None else count, batches)
    except StageFailedError as failed:
        if isinstance(slot, EntryFolder):
            slot.failed(plan.flow, failed)
        raise
