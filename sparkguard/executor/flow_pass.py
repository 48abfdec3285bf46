"""The pass: every record stage of a flow over one Arrow batch after another."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from sparkguard.core.decide import not_stored
from sparkguard.core.failure import Cause, Failure
from sparkguard.core.ledger import Entry
from sparkguard.core.letter import Letter
from sparkguard.core.record import Record
from sparkguard.errors import SinkError
from sparkguard.executor import breach
from sparkguard.executor.batch_run import BatchRun, Tools
from sparkguard.executor.encode import Encoder
from sparkguard.executor.lane import Lane
from sparkguard.executor.plan import ORIGIN_COLUMN, Layout, Plan, Step
from sparkguard.executor.source import Source
from sparkguard.executor.task import StoppedError, Task
from sparkguard.executor.work import Work

if TYPE_CHECKING:
    from sparkguard.executor.child import Note


class FlowPass:
    """One task's pass over its batches."""

    def __init__(self, plan: Plan, task: Task) -> None:
        self.work = Work.begin(plan, task)
        self._plan = plan
        self._tools = Tools(self.work)
        self._topics: set[str] = set()
        self._encoder = Encoder(plan.shape, plan.zone)
        self._names = [*self._encoder.schema.names, *(name for name, _ in plan.layout.carried)]
        if plan.layout.origin:
            self._names.append(ORIGIN_COLUMN)

    def batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The output rows of one batch; its bad records have left it."""
        source = self.begin(batch)
        made = self.rows(source)
        self.finish(source)
        return made

    def begin(self, batch: pa.RecordBatch) -> Source:
        """The batch as a source.

        Raises:
            StageFailedError: its letters would go to where it comes from.
        """
        source = Source(batch, self._plan.layout)
        self._refuse_own_letters(source)
        return source

    def finish(self, source: Source) -> None:
        """Count a batch once all its parts have left."""
        tally = self.work.tally
        tally.records_in += source.batch.num_rows
        tally.cover(source.spans)
        tally.see(source.batch)

    def rows(self, source: Source) -> pa.RecordBatch:
        """The output rows of a batch or of a part of one."""
        batch = source.batch
        run = BatchRun(self.work, self._tools, source)
        parts = [self._part(run, lane) for lane in run.parts()]
        columns = zip(*(arrays for arrays, _ in parts), strict=True)
        arrays = [column[0] if len(column) == 1 else pa.concat_arrays(column) for column in columns]
        arrays.extend(_moved(batch, self._plan.layout, [lane for _, lane in parts]))
        return pa.RecordBatch.from_arrays(arrays, self._names)

    def lost(self, source: Source, place: int, error: Exception) -> pa.RecordBatch:
        """The output of one record that ended its process in a step: no rows.

        Raises:
            StageFailedError: the step's policy says so.
        """
        BatchRun(self.work, self._tools, source).killed(place, error)
        return self.rows(Source(source.batch.slice(0, 0), self._plan.layout))

    def state(self) -> tuple[Any, ...]:
        """What the pass has counted and remembers: for another process to go on with."""
        kept = [attempt.state() for attempt in self._tools.attempts]
        return self.work.tally.state(), self.work.delivery.seen, kept

    def restore(self, state: tuple[Any, ...]) -> None:
        """Go on from a `state`."""
        counted, self.work.delivery.seen, kept = state
        self.work.tally.restore(counted)
        for attempt, one in zip(self._tools.attempts, kept, strict=True):
            attempt.restore(one)

    @contextmanager
    def bounded(self, dump: int = 2, note: Note | None = None) -> Iterator[None]:
        """Run the functions here, each record within its time.

        Args:
            dump: number of the file that takes the stacks where a function does not react.
            note: takes what is worked on.
        """
        self._tools.note = self.work.delivery.note = note
        if not any(step.policy.record_timeout for step in self._plan.steps):
            yield
            return
        from sparkguard.executor.record_timeout import RecordTimeout

        with RecordTimeout(self._plan.steps, dump) as self._tools.timeout:
            yield

    def _part(self, run: BatchRun, lane: Lane) -> tuple[list[pa.Array], Lane]:
        """The columns of one part, and the units of their rows; its values are freed."""
        lane = run.through(lane)
        if lane.columnar:
            run.leave(lane)
            made: Any = lane.values
            return made.columns, lane.bare()
        if self._tools.note is not None:
            self._tools.note.at(-1)
        arrays, failed = self._encoder.encode(lane.values)
        if failed:
            lane = run.refused(lane, failed)
            # Siblings of a refused element leave with it, so the arrays are made anew.
            arrays, _ = self._encoder.encode(lane.values)
        run.leave(lane)
        return arrays, lane.bare()

    def _refuse_own_letters(self, source: Source) -> None:
        """Refuse a topic that is the dead-letter topic too, before anything is sent (P16)."""
        for span in source.spans:
            if span.topic not in self._topics:
                self._topics.add(span.topic)
                record = Record(topic=span.topic, partition=span.partition, offset=span.first)
                for step in self._plan.steps:
                    self._refuse(record, step)

    def _refuse(self, record: Record, step: Step) -> None:
        failure = Failure(
            stage=step.name,
            category=step.category,
            cause=Cause.POISON,
            exception_types=(),
            record=record,
        )
        for name in sorted(step.policy.sinks()):
            sink = self._plan.sinks.get(name)
            refusal = sink.refuses(Letter(id="", failure=failure)) if sink else None
            if refusal:
                error = SinkError(refusal, sink=name, retriable=False)
                raise not_stored(self._plan.app, self._plan.flow, error, failure)


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
    task = task or Task.current(plan.stop_marker)
    if plan.breaches is not None and breach.look(plan.breaches, task):
        task = replace(task, careful=True)
    flow_pass = FlowPass(plan, task)
    delivery = flow_pass.work.delivery
    try:
        if task.careful and hasattr(os, "fork"):
            yield from _carefully(flow_pass, batches)
        else:
            with flow_pass.bounded():
                for batch in batches:
                    yield flow_pass.batch(batch)
        flow_pass.work.flush()
        if count is not None:
            count(flow_pass.work.tally.entry())
    except GeneratorExit:
        try:
            delivery.flush()
        except SinkError as error:
            sys.stderr.write(f"An evaluation that ended early lost letters: {error}\n")
        raise
    except StoppedError as stopped:
        raise flow_pass.work.stopped(stopped) from None
    finally:
        delivery.close()


def _carefully(flow_pass: FlowPass, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    from sparkguard.executor.careful import Careful

    careful = Careful(flow_pass)
    try:
        for batch in batches:
            yield from careful.over(batch)
    finally:
        careful.close()


def _moved(batch: pa.RecordBatch, layout: Layout, parts: Sequence[Lane]) -> list[pa.Array]:
    """The carried columns and the hidden origin, for the rows that came through."""
    columns = [batch.column(column) for _, column in layout.carried]
    if layout.origin:
        fields = [batch.column(column) for _, column in layout.origin]
        columns.append(pa.StructArray.from_arrays(fields, [name for name, _ in layout.origin]))
    if not columns or all(part.whole for part in parts):
        return columns
    rows = pa.array([row for part in parts for row in part.rows()], pa.int32())
    return [column.take(rows) for column in columns]
