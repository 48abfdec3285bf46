"""A flow: consecutive record stages, compiled into one Arrow pass over a DataFrame."""

from __future__ import annotations

import functools
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sparkguard import pickling
from sparkguard.core.policy import Policy
from sparkguard.core.shape import Shape
from sparkguard.core.signature import Signature
from sparkguard.errors import StageError
from sparkguard.executor.plan import Plan, Step
from sparkguard.executor.rows import Convert, OnlyColumn, Read, row_reader
from sparkguard.frame import Arranger
from sparkguard.sinks.base import Sink
from sparkguard.stages.base import Stage
from sparkguard.stages.types import compatible, shape_of, spark_type

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sparkguard.driver.mailbox import Mailbox

RECORD_KINDS = ("deserialize", "map", "flat_map", "filter")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """What a guard gives its flows.

    Attributes:
        breaches: folder of the budgets that queries were found to exceed.
        mailbox: makes the way back for the workers' counts; None where there is none.
        streams: told the use token of every flow that reads a stream.
        check: looks at sinks and source before a frame is read; raises what makes it impossible.
    """

    app: str
    sinks: dict[str, Sink]
    stop_marker: str
    breaches: str
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
        self.bound.check(frame, self._sinks())
        reads_value = self.stages[0].kind == "deserialize"
        arranged = Arranger(frame, self.name, reads_value=reads_value).arrange(self.carry)
        reader = None if reads_value else self._reader(arranged.layout.rows)
        plan = Plan(
            app=self.bound.app,
            flow=self.name,
            use=uuid.uuid4().hex,
            steps=self._steps(),
            layout=arranged.layout,
            shape=self.shape,
            sinks=self.bound.sinks,
            reader=reader,
            stop_marker=self.bound.stop_marker,
            breaches=self._breaches(),
            zone=frame.sparkSession.conf.get("spark.sql.session.timeZone") or "UTC",
        )
        if frame.isStreaming:
            self.bound.streams(plan.use)
        mailbox = self.bound.mailbox(frame.sparkSession)
        accumulator = None if mailbox is None else mailbox.accumulator
        schema = spark_type(self.shape)
        for column in arranged.repeated:
            if column.name in schema.names:
                raise StageError(
                    f"Flow {self.name!r} gives {column.name!r} and is to carry it too."
                )
            schema = schema.add(column)
        return arranged.frame.mapInArrow(
            functools.partial(_run, _packed(plan), accumulator), schema
        )

    def _reader(self, columns: int) -> tuple[Read, Convert | None]:
        first = self.stages[0]
        read, convert = row_reader(first.signature().input)
        if isinstance(read, OnlyColumn) and columns != 1:
            raise StageError(
                f"takes {_spelled(first.signature().input)}, so one column, and the frame has "
                f"{columns}: select one, or take the row as a struct, a dict or a pyspark Row.",
                stage=first.name,
            )
        return read, convert

    def _breaches(self) -> str | None:
        """Where tasks look for a breach; a look costs, so only where a stage has a budget."""
        budgets = [policy.budget for policy in self.policies.values()]
        return self.bound.breaches if any(budgets) else None

    def _sinks(self) -> list[str]:
        """The sinks that letters of this flow may go to."""
        found = {name for policy in self.policies.values() for name in policy.sinks()}
        overflows = {getattr(self.bound.sinks.get(name), "overflow", None) for name in found}
        return sorted(found | {name for name in overflows if name})

    def _steps(self) -> tuple[Step, ...]:
        signatures = [stage.signature() for stage in self.stages]
        return tuple(
            Step(
                name=stage.name,
                kind=stage.kind,
                category=stage.category,
                policy=self.policies[stage.name],
                function=None if stage.function is None else stage,
                format=stage.format,
                accepts_none=_accepts_none(self.stages, signatures, place),
                gives_none=signatures[place].output_optional,
                wants_record=signatures[place].wants_record,
                partial=stage.partial,
            )
            for place, stage in enumerate(self.stages)
        )


def output_shape(stages: Sequence[Stage[Any, Any]], name: str) -> Shape:
    """The type of what a flow gives; checks that its stages fit together.

    Raises:
        StageError: a stage does not belong into a flow, two have one name, the
            types of two neighbours do not fit, or Spark has no such output type.
    """
    if not stages:
        raise StageError(f"Flow {name!r} has no stages.")
    for stage in stages:
        if not isinstance(stage, Stage):
            called = getattr(stage, "__name__", type(stage).__name__)
            raise StageError(
                f"Flow {name!r} takes stages, and {called!r} is none: decorate it with @sg.map, "
                "@sg.flat_map, @sg.filter or @sg.deserialize, and give each stage by itself."
            )
    names = [stage.name for stage in stages]
    for stage in stages:
        if stage.kind not in RECORD_KINDS:
            raise StageError(
                f"a {stage.kind} is no record stage; a flow takes {', '.join(RECORD_KINDS)}.",
                stage=stage.name,
            )
        if names.count(stage.name) > 1:
            raise StageError(f"flow {name!r} has two stages of this name.", stage=stage.name)
        if stage.kind == "deserialize" and stage is not stages[0]:
            raise StageError(
                "deserialize reads the record's value: it comes first.", stage=stage.name
            )
    _fit(stages)
    makers = [stage for stage in stages if stage.kind != "filter"]
    if not makers:
        raise StageError(
            f"Flow {name!r} only filters; begin it with deserialize, map or flat_map, "
            "or use DataFrame.filter."
        )
    last = makers[-1]
    output = last.signature().output
    if last.format is not None and output is Any:
        raise StageError(
            "it gives plain Python objects, and Spark's columns need a type: give the format one, "
            "as in Json(Order), or go on with a map.",
            stage=last.name,
        )
    return shape_of(output, where=f"Stage {last.name!r}")


def _fit(stages: Sequence[Stage[Any, Any]]) -> None:
    given: Any = ...
    giver = ""
    for stage in stages:
        signature = stage.signature()
        if given is not ... and not compatible(given, signature.input):
            raise StageError(
                f"takes {_spelled(signature.input)}, but {giver!r} before it gives "
                f"{_spelled(given)}.",
                stage=stage.name,
            )
        if stage.kind != "filter":
            given, giver = signature.output, stage.name


def _accepts_none(
    stages: Sequence[Stage[Any, Any]], signatures: Sequence[Signature], place: int
) -> bool:
    """Whether None may be what this stage gets; for deserialize, what it hands on."""
    if stages[place].kind != "deserialize":
        return signatures[place].input_optional
    for stage, signature in zip(stages[place + 1 :], signatures[place + 1 :], strict=True):
        if not signature.input_optional:
            return False
        if stage.kind != "filter":
            return True
    return signatures[place].output_optional


def _spelled(annotation: Any) -> str:
    return getattr(annotation, "__name__", None) or str(annotation)


def _packed(plan: Plan) -> bytes:
    """The plan as it travels; names the stage that cannot."""
    try:
        return pickling.dumps(plan)
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


def _run(work: bytes, accumulator: Any, batches: Iterable[Any]) -> Iterator[Any]:
    """What Spark calls in the worker, once a task."""
    from sparkguard.executor.flow_pass import run

    count = None if accumulator is None else lambda entry: accumulator.add([entry])
    yield from run(pickling.loads_on_worker(work), count, batches)
