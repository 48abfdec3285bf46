"""One Arrow batch on its way through the steps of a flow.

Stage after stage runs over the batch's list of values, with the user's function
mapped in C. An exception leaves what came before it in the output list, so the
failing value is known by the lengths, and the same iterator goes on behind it.
A function that raises StopIteration ends the list quietly: the lengths tell.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

from sparkguard.executor.attempt import Aside, Attempt, Recovered, Trouble
from sparkguard.executor.lane import Lane, Unit, inner, path_of, row_of
from sparkguard.executor.plan import Step
from sparkguard.executor.rows import read_one
from sparkguard.executor.source import Source
from sparkguard.executor.work import Work

_AT_ONCE = 2_000
"""So many values go through all stages before the next ones do: then what a stage made is still in
the processor's cache when the next stage takes it. Batches of 10,000 orders take a third longer
at once than in such parts, on a machine whose cores share their cache."""


_TOGETHER = 200
"""So many failures are put aside before their records are read: each keeps its exception."""


class TombstoneError(ValueError):
    """The value is null, and the next stage does not take None."""


class NoneError(TypeError):
    """A stage returned None where its annotation promises a value."""


class _ElementsError(Exception):
    """A partial flat_map raised after it gave some elements."""

    def __init__(self, elements: list[Any], error: BaseException) -> None:
        super().__init__()
        self.elements = elements
        self.error = error


class BatchRun:
    """The state of one batch: which of its units have left the flow."""

    def __init__(
        self,
        work: Work,
        calls: Sequence[Callable[..., Any]],
        attempts: Sequence[Attempt],
        source: Source,
    ) -> None:
        self._plan = work.plan
        self._tally = work.tally
        self._calls = calls
        self._attempts = attempts
        self._source = source
        self._gone: set[Unit] = set()
        self._left = 0  # how many of those are whole records
        self._broken: dict[int, tuple[str, str]] = {}

    def parts(self) -> Iterator[Lane]:
        """What came in, in parts of `_AT_ONCE` values; one that is empty if nothing did."""
        plan, batch = self._plan, self._source.batch
        if plan.reader is not None:
            yield from self._read(*plan.reader).parts(_AT_ONCE)
            return
        column = batch.column(plan.layout.value)
        for start in range(0, max(len(column), 1), _AT_ONCE):
            values = column.slice(start, _AT_ONCE).to_pylist()
            yield Lane(values, range(start, start + len(values)))

    def through(self, lane: Lane) -> Lane:
        """What came of a part, behind every step."""
        for place, step in enumerate(self._plan.steps):
            before = lane
            self._attempts[place].entered(before.records())
            gone = self._left
            lane = self._step(place, step, lane).without_units(self._gone)
            filtered = before.records() - lane.records() - (self._left - gone)
            if self._broken:
                filtered -= len((self._broken.keys() & set(before.rows())) - set(lane.rows()))
            if filtered:
                self._tally.add(step.name, "filtered", filtered)
        return lane

    def refused(self, lane: Lane, failed: Sequence[tuple[int, Exception]]) -> Lane:
        """What is left when the output type did not take some values.

        They are failures of the last step that made values.
        """
        makers = [i for i, step in enumerate(self._plan.steps) if step.kind != "filter"]
        place = makers[-1] if makers else 0
        lost = []
        for position, error in failed:
            lost.append(position)
            self._leave(place, error, lane.unit(position), None)
        return lane.without(lost).without_units(self._gone)

    def leave(self, lane: Lane) -> None:
        """Count a part once its output is made."""
        tally = self._tally
        tally.rows_out += len(lane.values)
        tally.records_out += lane.records()
        if self._broken:
            alive = set(lane.rows())
            for row, (stage, fact) in self._broken.items():
                if row not in alive:
                    tally.add(stage, fact)
            self._broken.clear()

    def finish(self) -> None:
        """Count the batch once all its parts have left."""
        self._tally.records_in += self._source.batch.num_rows
        self._tally.cover(self._source.spans)
        self._tally.see(self._source.batch)

    def _read(self, read: Callable[[Any], list[Any]], convert: Callable[[Any], Any] | None) -> Lane:
        rows = self._source.batch.select(list(range(self._plan.layout.rows)))
        try:
            lane = Lane(read(rows))
        except Exception:
            lane = self._map(
                0,
                Lane(list(range(len(rows)))),
                lambda lane: map(partial(read_one, read, rows), lane.values),
            )
        return (
            lane if convert is None else self._map(0, lane, lambda lane: map(convert, lane.values))
        )

    def _step(self, place: int, step: Step, lane: Lane) -> Lane:
        match step.kind:
            case "deserialize":
                return self._deserialize(place, step, lane)
            case "filter":
                return self._filter(place, lane)
            case "flat_map":
                return self._flat_map(place, step, lane)
            case _:
                return self._map(place, lane)

    def _map(
        self, place: int, lane: Lane, results: Callable[[Lane], Iterator[Any]] | None = None
    ) -> Lane:
        out, lost = self._collect(place, lane, results or (lambda lane: self._results(place, lane)))
        return lane.become(out, lost)

    def _filter(self, place: int, lane: Lane) -> Lane:
        answers, lost = self._collect(place, lane, lambda lane: self._results(place, lane))
        lane = lane.without(lost)
        if not set(map(type, answers)) <= {bool}:
            # The truth of some values cannot be asked, like that of an array.
            asked = replace(lane, values=answers)
            answers, lost = self._collect(place, asked, lambda lane: map(bool, lane.values))
            lane = lane.without(lost)
        return lane if all(answers) else lane.keep(answers)

    def _flat_map(self, place: int, step: Step, lane: Lane) -> Lane:
        collect: Callable[[Any], list[Any]] = _elements if step.partial else list
        lists, lost = self._collect(
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
            self._gone.update(nulls)
            self._left += len(nulls)
            self._tally.add(step.name, "skipped", len(nulls))
            return []
        if step.policy.on_null == "pass" and step.accepts_none:
            return nulls
        for row in nulls:
            error = TombstoneError(
                "The value is null (a tombstone), and what follows does not take None: "
                "make its input type Optional, or set 'on_null: skip'."
            )
            self._leave(place, error, row, None)
        return []

    def _results(self, place: int, lane: Lane) -> Iterator[Any]:
        if self._plan.steps[place].wants_record:
            return map(self._calls[place], lane.values, map(self._source.record, lane.rows()))
        return map(self._calls[place], lane.values)

    def _collect(
        self, place: int, lane: Lane, results: Callable[[Lane], Iterator[Any]]
    ) -> tuple[list[Any], list[int]]:
        """What the function gave, in order, and the positions where the value has left."""
        out: list[Any] = []
        lost: list[int] = []
        aside: list[Aside] = []
        done, size = 0, len(lane.values)
        iterator = results(lane)
        while True:
            try:
                out.extend(iterator)
            except BaseException as error:  # whatever user code raises is a failure (P11)
                raised: BaseException = error
            else:
                if len(out) + len(lost) == size:
                    if len(out) > done:
                        self._attempts[place].progressed()
                    self._settle(place, aside)
                    return out, lost
                raised = StopIteration("The function raised StopIteration.")
            position, progressed = len(out) + len(lost), len(out) > done
            waits = self._aside(place, raised, lane, position, progressed=progressed)
            if waits is not None:
                aside.append(waits)
                lost.append(position)
                if len(aside) >= _TOGETHER:
                    self._settle(place, aside)
            else:
                self._settle(place, aside)
                one = Lane([lane.values[position]], [lane.unit(position)], lane.fanned)
                kept = self._meet(place, raised, one, results, progressed=progressed)
                if kept is None:
                    lost.append(position)
                else:
                    out.append(kept.value)
            # Its traceback holds this frame: together they would keep the batch alive.
            del raised
            done = len(out)

    def _aside(
        self, place: int, raised: BaseException, lane: Lane, position: int, *, progressed: bool
    ) -> Aside | None:
        """The failure, put aside until the part is through this step; None if it cannot wait."""
        value, unit = lane.values[position], lane.unit(position)
        # A None may be the fault of the stage before, an element that of its whole record.
        if lane.fanned or value is None or not isinstance(unit, int):
            return None
        if isinstance(raised, _ElementsError):
            return None
        return self._attempts[place].aside(raised, value, unit, progressed=progressed)

    def _settle(self, place: int, aside: list[Aside]) -> None:
        """Read the records of what was put aside, and decide about each in its turn."""
        if aside:
            records = self._source.records([one.row for one in aside])
            for one, record in zip(aside, records, strict=True):
                self._gone_for(place, one.row, self._attempts[place].settled(one, record))
            aside.clear()

    def _meet(
        self,
        place: int,
        raised: BaseException,
        one: Lane,
        results: Callable[[Lane], Iterator[Any]],
        *,
        progressed: bool,
    ) -> Recovered | None:
        """One exception of one value: what goes on in its place, or None."""
        unit = one.unit(0)
        if unit in self._gone:
            return None

        def again() -> Any:
            try:
                return next(results(one))
            except _ElementsError as error:
                raise error.error from None

        blamed = self._blame(place, one.values[0])
        if blamed is not None:
            return self._leave(blamed[0], blamed[1], unit, None, progressed=progressed)
        if isinstance(raised, _ElementsError):
            element = inner(unit, self._plan.steps[place].name, len(raised.elements))
            kept = self._leave(place, raised.error, element, again, progressed=progressed)
            return kept or Recovered(raised.elements)
        return self._leave(place, raised, unit, again, progressed=progressed)

    def _blame(self, place: int, value: Any) -> tuple[int, NoneError] | None:
        """The stage before, when it returned the None that this one stumbled over."""
        if value is not None or self._plan.steps[place].accepts_none:
            return None
        # A filter hands on what it gets.
        makers = [i for i in range(place) if self._plan.steps[i].kind != "filter"]
        before = self._plan.steps[makers[-1]] if makers else None
        if before is None or before.gives_none:
            return None
        return makers[-1], NoneError(f"The stage {before.name!r} returned None.")

    def _leave(
        self,
        place: int,
        error: BaseException,
        unit: Unit,
        again: Callable[[], Any] | None,
        *,
        progressed: bool = True,
    ) -> Recovered | None:
        if unit in self._gone:
            return None
        row = row_of(unit)
        trouble = Trouble(
            error=error,
            again=again,
            record=lambda: self._source.record(row),
            progressed=progressed,
            path=path_of(unit),
        )
        ended = self._attempts[place].failed(trouble)
        if isinstance(ended, Recovered):
            return ended
        self._gone_for(place, unit, ended)
        return None

    def _gone_for(self, place: int, unit: Unit, fact: str) -> None:
        """A unit has left the flow at a step, under this fact."""
        stage = self._plan.steps[place].name
        self._gone.add(unit)
        if isinstance(unit, int):
            self._left += 1
            self._tally.add(stage, fact)
        else:
            self._tally.add(stage, "elements")
            self._broken.setdefault(row_of(unit), (stage, fact))


def _elements(iterable: Iterable[Any]) -> list[Any]:
    elements: list[Any] = []
    try:
        elements.extend(iterable)
    except BaseException as error:  # the elements so far are kept: that is what partial means
        raise _ElementsError(elements, error) from error
    return elements
