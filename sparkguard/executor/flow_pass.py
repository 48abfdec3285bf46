"""The pass: every record stage of a flow over one Arrow batch after another."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa

from sparkguard.core.decide import not_stored
from sparkguard.core.ledger import Entry
from sparkguard.errors import SinkError, StageFailedError
from sparkguard.executor.attempt import Attempt
from sparkguard.executor.batch_run import BatchRun
from sparkguard.executor.delivery import Delivery
from sparkguard.executor.encode import Encoder
from sparkguard.executor.lane import Lane
from sparkguard.executor.plan import ORIGIN_COLUMN, Layout, Plan
from sparkguard.executor.source import Source
from sparkguard.executor.task import StoppedError, Task
from sparkguard.executor.work import Work


class FlowPass:
    """One task's pass over its batches."""

    def __init__(self, plan: Plan, task: Task) -> None:
        self.work = Work.begin(plan, task)
        self._plan = plan
        self._calls = [step.call() for step in plan.steps]
        self._attempts = [Attempt(self.work, step) for step in plan.steps]
        self._encoder = Encoder(plan.shape, plan.zone)
        self._names = [*self._encoder.schema.names, *(name for name, _ in plan.layout.carried)]
        if plan.layout.origin:
            self._names.append(ORIGIN_COLUMN)

    def batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The output rows of one batch; its bad records have left it."""
        source = Source(batch, self._plan.layout)
        run = BatchRun(self.work, self._calls, self._attempts, source)
        lane = run.through()
        arrays, failed = self._encoder.encode(lane.values)
        if failed:
            lane = run.refused(lane, failed)
            # Siblings of a refused element leave with it, so the arrays are made anew.
            arrays, _ = self._encoder.encode(lane.values)
        run.finish(lane, len(lane.values))
        arrays.extend(_moved(batch, self._plan.layout, lane))
        return pa.RecordBatch.from_arrays(arrays, self._names)


def run(
    plan: Plan,
    count: Callable[[Entry], None] | None,
    batches: Iterable[pa.RecordBatch],
    task: Task | None = None,
) -> Iterator[pa.RecordBatch]:
    """Run a task, Spark's current one if none is given.

    Every batch, then the letters' acknowledgement, then the count.

    An evaluation that Spark ends early (``first()``, ``limit``) is partial: its
    letters are stored as best can be, and it is never counted (P11).
    """
    flow_pass = FlowPass(plan, task or Task.current(plan.stop_marker))
    delivery = flow_pass.work.delivery
    try:
        for batch in batches:
            yield flow_pass.batch(batch)
        _flush(plan, delivery)
        if count is not None:
            count(flow_pass.work.tally.entry())
    except GeneratorExit:
        try:
            delivery.flush()
        except SinkError as error:
            sys.stderr.write(f"An evaluation that ended early lost letters: {error}\n")
        raise
    except StoppedError as stopped:
        raise _stopped(plan, stopped) from None
    finally:
        delivery.close()


def _flush(plan: Plan, delivery: Delivery) -> None:
    try:
        delivery.flush()
    except SinkError as error:
        raise not_stored(plan.app, plan.flow, error) from error


def _stopped(plan: Plan, stopped: StoppedError) -> StageFailedError:
    sentence = f"Flow {plan.flow!r} stopped while it waited to retry: {stopped}"
    facts = {"sentence": sentence, "action": "stop", "flow": plan.flow, "app": plan.app}
    return StageFailedError(sentence, facts)


def _moved(batch: pa.RecordBatch, layout: Layout, lane: Lane) -> list[pa.Array]:
    """The carried columns and the hidden origin, for the rows that came through."""
    columns = [batch.column(column) for _, column in layout.carried]
    if layout.origin:
        fields = [batch.column(column) for _, column in layout.origin]
        columns.append(pa.StructArray.from_arrays(fields, [name for name, _ in layout.origin]))
    if lane.units is None or not columns:
        return columns
    rows = pa.array(list(lane.rows()), pa.int32())
    return [column.take(rows) for column in columns]
