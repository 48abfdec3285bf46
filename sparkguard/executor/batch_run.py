"""One Arrow batch on its way through the steps of a flow.

Stage after stage runs over the batch's list of values, with the user's function mapped in C.
A stage that takes rows of columns reads them first; one that takes whole batches gets them made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from sparkguard.executor.attempt import Attempt, Trouble
from sparkguard.executor.encode import Encoder
from sparkguard.executor.lane import Lane, Unit, inner, row_of
from sparkguard.executor.leaving import ElementsError, Leaving, Results
from sparkguard.executor.plan import Step
from sparkguard.executor.rows import read_one
from sparkguard.executor.source import Source
from sparkguard.executor.vectorised import Call, Vectorised
from sparkguard.executor.work import Work

if TYPE_CHECKING:
    from sparkguard.executor.child import Note
    from sparkguard.executor.record_timeout import RecordTimeout

_AT_ONCE = 2_000
"""So many values go through all stages before the next ones do: then what a stage made is still in
the processor's cache when the next stage takes it. Batches of 10,000 orders take a third longer
at once than in such parts, on a machine whose cores share their cache. A stage over whole batches
gets them whole."""


class TombstoneError(ValueError):
    """The value is null, and the next stage does not take None."""


class Tools:
    """What a task's steps need for all of its batches; made once.

    Attributes:
        timeout: bounds the values of stages, where one asks for it.
        note: takes what is worked on, in a process that may die of it.
    """

    def __init__(self, work: Work) -> None:
        plan = work.plan
        self._steps = plan.steps
        self._zone = plan.zone
        self.timeout: RecordTimeout | None = None
        self.note: Note | None = None
        self.attempts = [Attempt(work, step) for step in plan.steps]
        self.encoders = [
            Encoder(step.takes, plan.zone) if step.takes else None for step in plan.steps
        ]

    @cached_property
    def calls(self) -> list[Any]:
        """The functions, made where they are called: making one may run a user's code."""
        return [
            Call(self._bounded(place, step), step.gives, pandas=step.pandas, zone=self._zone)
            if step.gives
            else step.call()
            for place, step in enumerate(self._steps)
        ]

    def _bounded(self, place: int, step: Step) -> Callable[[Any], Any]:
        call = step.call()
        return call if self.timeout is None else self.timeout.bounded(place, call)


class BatchRun:
    """One batch in the steps of its flow."""

    def __init__(self, work: Work, tools: Tools, source: Source) -> None:
        self._plan = work.plan
        self._tally = work.tally
        self._tools = tools
        # Before any step, so that what ends the process while they are made is no record's fault.
        self._calls = tools.calls
        self._source = source
        self._leaving = Leaving(work, tools.attempts, source, tools.timeout)

    def parts(self) -> Iterator[Lane]:
        """What came in, in parts of `_AT_ONCE` values; one that is empty if nothing did."""
        plan, batch = self._plan, self._source.batch
        size = max(len(batch), 1) if plan.vectorised else _AT_ONCE
        reads_value = plan.steps[0].kind == "deserialize"
        rows = None if reads_value else batch.select(list(range(plan.layout.rows)))
        for start in range(0, max(len(batch), 1), size):
            if rows is None:
                part = batch.column(plan.layout.value).slice(start, size).to_pylist()
            else:
                part = rows.slice(start, size)
            yield Lane(part, range(start, start + len(part)))

    def through(self, lane: Lane) -> Lane:
        """What came of a part, behind every step."""
        leaving = self._leaving
        for place, step in enumerate(self._plan.steps):
            before = lane
            self._tools.attempts[place].entered(before.records())
            gone = leaving.records
            lane = self._step(place, step, lane).without_units(leaving.gone)
            filtered = before.records() - lane.records() - (leaving.records - gone)
            if leaving.broken:
                filtered -= len((leaving.broken.keys() & set(before.rows())) - set(lane.rows()))
            if filtered:
                self._tally.add(step.name, "filtered", filtered)
        return lane

    def refused(self, lane: Lane, failed: Sequence[tuple[int, Exception]]) -> Lane:
        """What is left when the output type did not take some values."""
        return self._refused(len(self._plan.steps), lane, failed)

    def _refused(self, place: int, lane: Lane, failed: Sequence[tuple[int, Exception]]) -> Lane:
        """They are failures of the last step before `place` that made values."""
        makers = [i for i, step in enumerate(self._plan.steps[:place]) if step.kind != "filter"]
        maker = makers[-1] if makers else 0
        for position, error in failed:
            self._leaving.leave(maker, lane.unit(position), Trouble(error=error))
        lost = [position for position, _ in failed]
        return lane.without(lost).without_units(self._leaving.gone)

    def leave(self, lane: Lane) -> None:
        """Count a part once its output is made."""
        tally, broken = self._tally, self._leaving.broken
        tally.rows_out += len(lane.values)
        tally.records_out += lane.records()
        if broken:
            alive = set(lane.rows())
            for row, (stage, fact) in broken.items():
                if row not in alive:
                    tally.add(stage, fact)
                    if fact == "dead_lettered":
                        # The letter of its first element stands for it.
                        tally.add(stage, "extra_letters", -1)
            broken.clear()

    def killed(self, place: int, error: Exception) -> None:
        """The only record ended its process in a step: there it leaves.

        Raises:
            StageFailedError: its policy says so.
        """
        for attempt in self._tools.attempts[: place + 1]:
            attempt.entered(1)
        self._leaving.leave(place, 0, Trouble(error=error))

    def _step(self, place: int, step: Step, lane: Lane) -> Lane:
        if self._tools.note is not None:
            self._tools.note.at(place)
        match step.kind:
            case "deserialize":
                return self._deserialize(place, step, lane)
            case "filter":
                return self._filter(place, lane)
            case "flat_map":
                return self._flat_map(place, step, self._objects(place, lane)[0])
            case "map_batches":
                return self._map_batches(place, step, lane)
            case _:
                return self._map(place, self._objects(place, lane)[0])

    def _objects(self, place: int, lane: Lane) -> tuple[Lane, Lane]:
        """The lane as what a record stage takes, and as it came, without what cannot be read."""
        reader = self._plan.steps[place].reader
        if not lane.columnar or reader is None:
            return lane, lane
        read, convert = reader
        rows: Any = lane.values
        try:
            objects = replace(lane, values=read(rows))
        except Exception:
            # Some row cannot be read. One by one it is known which, and its exception is met.
            numbered = replace(lane, values=list(range(len(rows))))
            objects, lost = self._collected(
                place, numbered, lambda lane: map(partial(read_one, read, rows), lane.values)
            )
            lane = lane.without(lost)
        if convert is not None:
            objects, lost = self._collected(place, objects, lambda lane: map(convert, lane.values))
            lane = lane.without(lost)
        return objects, lane

    def _map(self, place: int, lane: Lane) -> Lane:
        return self._collected(place, lane, lambda lane: self._results(place, lane))[0]

    def _collected(self, place: int, lane: Lane, results: Results) -> tuple[Lane, list[int]]:
        out, lost = self._leaving.collect(place, lane, results)
        return lane.become(out, lost), lost

    def _filter(self, place: int, lane: Lane) -> Lane:
        objects, lane = self._objects(place, lane)
        answers, lost = self._leaving.collect(
            place, objects, lambda lane: self._results(place, lane)
        )
        lane = lane.without(lost)
        if not set(map(type, answers)) <= {bool}:
            # The truth of some values cannot be asked, like that of an array.
            asked = replace(lane, values=answers)
            answers, lost = self._leaving.collect(place, asked, lambda lane: map(bool, lane.values))
            lane = lane.without(lost)
        return lane if all(answers) else lane.keep(answers)

    def _flat_map(self, place: int, step: Step, lane: Lane) -> Lane:
        collect: Callable[[Any], list[Any]] = _elements if step.partial else list
        lists, lost = self._leaving.collect(
            place, lane, lambda lane: map(collect, self._results(place, lane))
        )
        lane = lane.become(lists, lost)
        units: list[Unit] = []
        for position, items in enumerate(lists):
            unit = lane.unit(position)
            if step.partial:
                units.extend(inner(unit, step.name, n) for n in range(len(items)))
            else:
                units.extend([unit] * len(items))
        return Lane(list(chain.from_iterable(lists)), units, fanned=True)

    def _map_batches(self, place: int, step: Step, lane: Lane) -> Lane:
        encoder = self._tools.encoders[place]
        if encoder is not None and not lane.columnar:
            arrays, failed = encoder.encode(lane.values)
            if failed:
                lane = self._refused(place, lane, failed)
                arrays, _ = encoder.encode(lane.values)
            lane = replace(lane, values=pa.RecordBatch.from_arrays(arrays, schema=encoder.schema))
        run = Vectorised(
            call=self._calls[place],
            attempt=self._tools.attempts[place],
            limit=step.policy.max_calls,
            leave=lambda row, trouble: self._leaving.leave(place, lane.unit(row), trouble),
            give_up=lambda row, error, reason: self._leaving.give_up(
                place, error, lane.unit(row), reason
            ),
        )
        made, lost = run.over(lane.values)
        return lane.become(made, lost)

    def _deserialize(self, place: int, step: Step, lane: Lane) -> Lane:
        if self._source.batch.column(self._plan.layout.value).null_count == 0:
            return self._map(place, lane)
        empty = [position for position, value in enumerate(lane.values) if value is None]
        nulls = [row_of(lane.unit(position)) for position in empty]
        decoded = self._map(place, lane.without(empty))
        pairs = [(decoded.unit(n), value) for n, value in enumerate(decoded.values)]
        pairs.extend((row, None) for row in self._nulls(place, step, nulls))
        pairs.sort(key=lambda pair: row_of(pair[0]))
        return Lane([value for _, value in pairs], [unit for unit, _ in pairs])

    def _nulls(self, place: int, step: Step, nulls: list[int]) -> list[int]:
        """The rows of null values that go on as None."""
        if step.policy.on_null == "skip":
            for row in nulls:
                self._leaving.gone_for(place, row, "skipped")
            return []
        if step.policy.on_null == "pass" and step.accepts_none:
            return nulls
        for row in nulls:
            error = TombstoneError(
                "The value is null (a tombstone), and what follows does not take None: "
                "make its input type Optional, or set 'on_null: skip'."
            )
            self._leaving.leave(place, row, Trouble(error=error))
        return []

    def _results(self, place: int, lane: Lane) -> Iterator[Any]:
        call, note = self._calls[place], self._tools.note
        values = lane.values if note is None else note.over(place, lane)
        if self._plan.steps[place].wants_record:
            return map(call, values, map(self._source.record, lane.rows()))
        return map(call, values)


def _elements(iterable: Iterable[Any]) -> list[Any]:
    elements: list[Any] = []
    try:
        elements.extend(iterable)
    except BaseException as error:  # the elements so far are kept: that is what partial means
        raise ElementsError(elements, error) from error
    return elements
