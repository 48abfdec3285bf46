"""A plan: a flow bound to its settings, as it travels to the workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from sparkguard.core.failure import Category
from sparkguard.core.outgoing import Outgoing
from sparkguard.core.policy import Policy
from sparkguard.core.shape import Shape
from sparkguard.formats.base import Format
from sparkguard.sinks.base import Sink

ORIGIN_COLUMN: Final = "_sparkguard"
"""The hidden column in which ``carry=sg.ORIGIN`` and ``sg.RECORD`` travel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One stage with everything a worker needs to run it.

    Attributes:
        function: the stage, or a bare function; None where `format` reads the value.
        accepts_none, gives_none: whether the types say that None is a value.
        wants_record: the function takes the `Record` as its second argument.
        partial: elements of a flat_map stand for themselves.
        reader: of a record stage in front of which there are columns: what reads rows of
            them, and what converts one.
        takes: of a map_batches behind a record stage, the type of what that one gives.
        gives: of a map_batches, its columns.
        pandas: whether a map_batches takes a DataFrame, and no RecordBatch.
    """

    name: str
    kind: str
    category: Category
    policy: Policy
    function: Callable[..., Any] | None = None
    format: Format | None = None
    accepts_none: bool = False
    gives_none: bool = False
    wants_record: bool = False
    partial: bool = False
    reader: tuple[Callable[[Any], list[Any]], Callable[[Any], Any] | None] | None = None
    takes: Shape | None = None
    gives: Shape | None = None
    pandas: bool = False

    def call(self) -> Callable[..., Any]:
        """The function to call for each value; made once a task."""
        if self.format is not None:
            return self.format.decoder()
        if self.function is None:
            msg = f"step {self.name!r} has neither a function nor a format"
            raise TypeError(msg)
        # A stage travels by reference, and the function in it is called without it.
        inner: Callable[..., Any] = getattr(self.function, "function", None) or self.function
        return inner


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Which column of the Arrow batch holds what; None where the frame has none.

    Attributes:
        others: names and columns of what the record has beside the known ones.
        carried: names and columns that the output repeats.
        origin: the hidden column: names and columns of its fields, in order.
        rows: the first so many columns are the row, for stages that read rows.
    """

    value: int | None = None
    key: int | None = None
    headers: int | None = None
    topic: int | None = None
    partition: int | None = None
    offset: int | None = None
    timestamp: int | None = None
    file: int | None = None
    others: tuple[tuple[str, int], ...] = ()
    carried: tuple[tuple[str, int], ...] = ()
    origin: tuple[tuple[str, int], ...] = ()
    rows: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A flow as the workers run it.

    Attributes:
        use: token of this application of the flow to a frame.
        stop_marker: path of the file that asks running tasks to stop waiting.
        breaches: folder in which a task looks whether its query is over a budget, or lost a worker.
        zone: the session's time zone, in which naive datetimes are read.
        outgoing: of a produce stage, how rows become messages.
        producer: of a produce stage, the settings of librdkafka, secrets included.
    """

    app: str
    flow: str
    use: str
    steps: tuple[Step, ...]
    layout: Layout
    shape: Shape
    sinks: Mapping[str, Sink] = field(default_factory=dict)
    stop_marker: str | None = None
    breaches: str | None = None
    zone: str = "UTC"
    outgoing: Outgoing | None = None
    producer: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def vectorised(self) -> bool:
        """Whether a stage takes many rows at once."""
        return any(step.kind == "map_batches" for step in self.steps)
