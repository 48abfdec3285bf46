"""From stages to steps: whether they fit together, and what each leaves to the next.

Between record stages go Python objects, in front of and behind a map_batches go columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sparkguard.core.policy import Policy
from sparkguard.core.shape import Kind, Shape, columns_of
from sparkguard.core.signature import Signature
from sparkguard.errors import StageError
from sparkguard.executor.plan import Step
from sparkguard.executor.rows import Convert, OnlyColumn, Read, row_reader
from sparkguard.stages.base import Stage
from sparkguard.stages.types import compatible, shape_of

RECORD_KINDS = ("deserialize", "map", "flat_map", "filter", "map_batches")

_Reader = tuple[Read, Convert | None]


def steps_of(
    stages: Sequence[Stage[Any, Any]],
    policies: Mapping[str, Policy],
    columns: int | None = None,
) -> tuple[Step, ...]:
    """The stages as workers run them.

    Args:
        columns: how many there are in front of the first stage, where that reads rows.

    Raises:
        StageError: a stage takes one value where there are several columns, or a map_batches
            follows objects of no type that Spark knows.
    """
    signatures = [stage.signature() for stage in stages]
    steps: list[Step] = []
    objects: Stage[Any, Any] | None = None
    for place, (stage, signature) in enumerate(zip(stages, signatures, strict=True)):
        vectorised = stage.kind == "map_batches"
        step = Step(
            name=stage.name,
            kind=stage.kind,
            category=stage.category,
            policy=policies[stage.name],
            function=None if stage.function is None else stage,
            format=stage.format,
            accepts_none=_accepts_none(stages, signatures, place),
            gives_none=signature.output_optional,
            wants_record=signature.wants_record,
            partial=stage.partial,
            reader=None if vectorised or columns is None else _reader(stage, columns),
            takes=_shape_of(objects) if vectorised and objects else None,
            gives=_shape_of(stage) if vectorised else None,
            pandas=vectorised and _takes_pandas(stage),
        )
        steps.append(step)
        if step.gives is not None:
            objects, columns = None, len(columns_of(step.gives))
        elif stage.kind != "filter":
            objects, columns = stage, None
    return tuple(steps)


def _reader(stage: Stage[Any, Any], columns: int) -> _Reader:
    takes = stage.signature().input
    read, convert = row_reader(takes)
    if isinstance(read, OnlyColumn) and columns != 1:
        raise StageError(
            f"takes {_spelled(takes)}, so one column, and there are {columns} in front of it: "
            "select one, or take the row as a struct, a dict or a pyspark Row.",
            stage=stage.name,
        )
    return read, convert


def _takes_pandas(stage: Stage[Any, Any]) -> bool:
    """Whether a map_batches takes a DataFrame; by name, for nothing is imported to know it."""
    takes = stage.signature().input
    name = getattr(takes, "__name__", "")
    if name in {"RecordBatch", "DataFrame"}:
        return bool(name == "DataFrame")
    raise StageError(
        "annotate its parameter with what it takes, pyarrow.RecordBatch or pandas.DataFrame.",
        stage=stage.name,
    )


def _shape_of(stage: Stage[Any, Any]) -> Shape:
    """The type of what a stage gives.

    Raises:
        StageError: Spark has no such type.
    """
    output = stage.signature().output
    if stage.format is not None and output is Any:
        raise StageError(
            "it gives plain Python objects, and Spark's columns need a type: give the format one, "
            "as in Json(Order), or go on with a map.",
            stage=stage.name,
        )
    shape = shape_of(output, where=f"Stage {stage.name!r}")
    if stage.kind == "map_batches" and (shape.kind is not Kind.STRUCT or shape.nullable):
        raise StageError(
            f"gives {shape.name}, and a map_batches gives columns: name them, as in "
            'returns="score double".',
            stage=stage.name,
        )
    return shape


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
    return _shape_of(makers[-1])


def _fit(stages: Sequence[Stage[Any, Any]]) -> None:
    given: Any = ...
    giver: Stage[Any, Any] | None = None
    for stage in stages:
        signature = stage.signature()
        if stage.kind == "map_batches":
            _takes_pandas(stage)
            if giver is not None:
                _shape_of(giver)
            # It takes columns, and what follows reads them as it wants.
            given, giver = ..., None
            continue
        if giver is not None and not compatible(given, signature.input):
            raise StageError(
                f"takes {_spelled(signature.input)}, but {giver.name!r} before it gives "
                f"{_spelled(given)}.",
                stage=stage.name,
            )
        if stage.kind != "filter":
            given, giver = signature.output, stage


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
