"""Flows without Spark: records as an Arrow batch, a plan, and a sink that keeps everything."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from sparkguard.core.failure import Failure
from sparkguard.core.ledger import Account, Entry, merge
from sparkguard.core.letter import Letter
from sparkguard.core.outcome import Outcome
from sparkguard.core.policy import Handler, Policy
from sparkguard.errors import SinkError
from sparkguard.executor import flow_pass
from sparkguard.executor.plan import Layout, Plan
from sparkguard.executor.task import Task
from sparkguard.handlers.dead_letter import DeadLetterHandler
from sparkguard.handlers.fail import FailHandler
from sparkguard.handlers.restart import RestartHandler
from sparkguard.sinks.base import Sink, SinkTask, Writer
from sparkguard.stages.base import Stage
from sparkguard.steps import output_shape, steps_of

TOPIC = "orders"
COLUMNS = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", "UTC")),
    ]
)
KAFKA = Layout(
    key=0, value=1, headers=2, topic=3, partition=4, offset=5, timestamp=6, rows=len(COLUMNS)
)
DEFAULTS = Policy(
    handler=DeadLetterHandler(),
    on_transient=RestartHandler(),
    on_programming=FailHandler(),
    on_fatal=FailHandler(),
    budget=None,
)


def policy(handler: Handler = DEFAULTS.handler, **changes: Any) -> Policy:
    """The defaults without a budget, with changes."""
    return replace(DEFAULTS, handler=handler, **changes)


@dataclass(frozen=True, slots=True)
class Decides:
    """A handler made of a function; it stays in this process."""

    decision: Any

    def decide(self, failure: Failure) -> Outcome:
        decided: Outcome = self.decision(failure)
        return decided


@dataclass(frozen=True, slots=True, kw_only=True)
class ListSink:
    """Keeps every letter as often as it is stored; what was not flushed is not stored."""

    stored: list[Letter] = field(default_factory=list)
    written: list[Letter] = field(default_factory=list)
    fails: bool = False
    retriable: bool = True
    refusal: str | None = None

    def open(self, task: SinkTask) -> Writer:
        return _ListWriter(self, task.name)

    def check(self, name: str, source_topics: frozenset[str]) -> None:
        """Nothing can be wrong."""

    def refuses(self, letter: Letter) -> str | None:
        return self.refusal


class _ListWriter:
    def __init__(self, sink: ListSink, name: str) -> None:
        self._sink = sink
        self._name = name
        self._waiting: list[Letter] = []

    def write(self, letter: Letter) -> None:
        self._sink.written.append(letter)
        self._waiting.append(letter)

    def flush(self) -> None:
        if self._sink.fails:
            raise SinkError("it was told to fail.", sink=self._name, retriable=self._sink.retriable)
        self._sink.stored.extend(self._waiting)
        self._waiting.clear()

    def close(self) -> None:
        self._waiting.clear()


@dataclass(frozen=True, slots=True, kw_only=True)
class ManualTask(Task):
    """A task whose clock moves when it waits, and by hand.

    Attributes:
        clock: one number, the seconds; the waits so far follow it.
    """

    clock: list[float] = field(default_factory=lambda: [1000.0], compare=False)

    def now(self) -> float:
        return self.clock[0]

    def wait(self, seconds: float) -> None:
        self.clock[0] += seconds
        self.clock.append(seconds)

    @property
    def waits(self) -> list[float]:
        """Every wait, in seconds."""
        return self.clock[1:]


def records(values: Sequence[bytes | None], first: int = 0, partition: int = 0) -> pa.RecordBatch:
    """Kafka records of these values, with keys and headers that say which one it is."""
    rows = [
        {
            "key": b"\xffk%d" % n,
            "value": value,
            "headers": [{"key": "n", "value": b"%d" % n}, {"key": "n", "value": None}],
            "topic": TOPIC,
            "partition": partition,
            "offset": n,
            "timestamp": 1_000_000 + n,
        }
        for n, value in enumerate(values, start=first)
    ]
    return pa.RecordBatch.from_pylist(rows, schema=COLUMNS)


def plan(
    *stages: Stage[Any, Any],
    policies: Mapping[str, Policy] | None = None,
    sinks: Mapping[str, Sink] | None = None,
    **changes: Any,
) -> Plan:
    """The plan of a flow named 'flow' over Kafka records."""
    known = policies or {}
    chosen = {stage.name: known.get(stage.name, DEFAULTS) for stage in stages}
    facts: dict[str, Any] = {"layout": KAFKA, "sinks": sinks or {}, **changes}
    columns = None if stages[0].kind == "deserialize" else facts["layout"].rows
    return Plan(
        app="app",
        flow="flow",
        use="use",
        steps=steps_of(stages, chosen, columns),
        shape=output_shape(stages, "flow"),
        **facts,
    )


@dataclass(frozen=True, slots=True)
class Ran:
    """What became of a task's records."""

    rows: list[Any]
    letters: list[Letter]
    account: Account


def run(made: Plan, *batches: pa.RecordBatch, task: Task | None = None) -> Ran:
    """One task over some batches, as a worker runs it; letters of the sink 'default'."""
    entries: list[Entry] = []
    passing = flow_pass.run(made, entries.append, batches, task or ManualTask())
    rows = [row for out in passing for row in out.to_pylist()]
    if not made.shape.fields:
        rows = [row["value"] for row in rows]
    (account,) = merge(entries)
    sink: Any = made.sinks.get("default", ListSink())
    return Ran(rows, list(sink.stored), account)
