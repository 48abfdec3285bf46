"""Leaving: how a failing value leaves one batch, alone, and what goes on in its place.

An exception leaves what came before it in the output list, so the failing value is known by
the lengths, and the same iterator goes on behind it. A function that raises StopIteration ends
the list quietly: the lengths tell.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from sparkguard.executor.attempt import Aside, Attempt, Recovered, Trouble
from sparkguard.executor.lane import Lane, Unit, inner, path_of, row_of
from sparkguard.executor.source import Source
from sparkguard.executor.work import Work

if TYPE_CHECKING:
    from sparkguard.executor.record_timeout import RecordTimeout

_TOGETHER = 200
"""So many failures are put aside before their records are read: each keeps its exception."""

Results = Callable[[Lane], Iterator[Any]]


class NoneError(TypeError):
    """A stage returned None where its annotation promises a value."""


class ElementsError(Exception):
    """A partial flat_map raised after it gave some elements."""

    def __init__(self, elements: list[Any], error: BaseException) -> None:
        super().__init__()
        self.elements = elements
        self.error = error


class Leaving:
    """Which units of one batch have left the flow.

    Attributes:
        gone: every unit that has left.
        records: how many of those are whole records.
        broken: records of which elements have left, the stage of the first, and as what.
    """

    def __init__(
        self,
        work: Work,
        attempts: Sequence[Attempt],
        source: Source,
        timeout: RecordTimeout | None = None,
    ) -> None:
        self._steps = work.plan.steps
        self._tally = work.tally
        self._attempts = attempts
        self._source = source
        self._timeout = timeout
        self.gone: set[Unit] = set()
        self.records = 0
        self.broken: dict[int, tuple[str, str]] = {}

    def collect(self, place: int, lane: Lane, results: Results) -> tuple[list[Any], list[int]]:
        """What the functions gave, in order, and the positions where the value has left."""
        out: list[Any] = []
        lost: list[int] = []
        aside: list[Aside] = []
        done, size = 0, len(lane.values)
        iterator, timeout = results(lane), self._timeout
        while True:
            try:
                if timeout is None:
                    out.extend(iterator)
                else:
                    timeout.fill(place, out, iterator)
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
        if isinstance(raised, ElementsError):
            return None
        return self._attempts[place].aside(raised, value, unit, progressed=progressed)

    def _settle(self, place: int, aside: list[Aside]) -> None:
        """Read the records of what was put aside, and decide about each in its turn."""
        if aside:
            records = self._source.records([one.row for one in aside])
            for one, record in zip(aside, records, strict=True):
                self.gone_for(place, one.row, self._attempts[place].settled(one, record))
            aside.clear()

    def _meet(
        self,
        place: int,
        raised: BaseException,
        one: Lane,
        results: Results,
        *,
        progressed: bool,
    ) -> Recovered | None:
        """One exception of one value: what goes on in its place, or None."""
        unit = one.unit(0)
        if unit in self.gone:
            return None

        def again() -> Any:
            iterator = results(one)
            try:
                if self._timeout is not None:
                    return self._timeout.one(place, iterator)
                return next(iterator)
            except ElementsError as error:
                raise error.error from None

        blamed = self._blame(place, one.values[0])
        if blamed is not None:
            return self.leave(blamed[0], unit, Trouble(error=blamed[1], progressed=progressed))
        if isinstance(raised, ElementsError):
            element = inner(unit, self._steps[place].name, len(raised.elements))
            trouble = Trouble(error=raised.error, again=again, progressed=progressed)
            return self.leave(place, element, trouble) or Recovered(raised.elements)
        return self.leave(place, unit, Trouble(error=raised, again=again, progressed=progressed))

    def _blame(self, place: int, value: Any) -> tuple[int, NoneError] | None:
        """The stage before, when it returned the None that this one stumbled over."""
        if value is not None or self._steps[place].accepts_none:
            return None
        # A filter hands on what it gets.
        makers = [i for i in range(place) if self._steps[i].kind != "filter"]
        before = self._steps[makers[-1]] if makers else None
        if before is None or before.gives_none:
            return None
        return makers[-1], NoneError(f"The stage {before.name!r} returned None.")

    def leave(self, place: int, unit: Unit, trouble: Trouble) -> Recovered | None:
        """Let a unit leave the flow, unless trying it again helps; what recovered in its place.

        Raises:
            StageFailedError, StoppedError: the task ends.
        """
        if unit in self.gone:
            return None
        read = partial(self._source.record, row_of(unit))
        ended = self._attempts[place].failed(trouble, read, path_of(unit))
        if isinstance(ended, Recovered):
            return ended
        self.gone_for(place, unit, ended)
        return None

    def give_up(self, place: int, error: BaseException, unit: Unit, reason: str) -> None:
        """Fail a stage at a unit.

        Raises:
            StageFailedError: always.
        """
        self._attempts[place].give_up(error, self._source.record(row_of(unit)), reason)

    def gone_for(self, place: int, unit: Unit, fact: str) -> None:
        """A unit has left the flow at a step, under this fact."""
        stage = self._steps[place].name
        self.gone.add(unit)
        if isinstance(unit, int):
            self.records += 1
            self._tally.add(stage, fact)
        else:
            self._tally.add(stage, "elements")
            if fact == "dead_lettered":
                self._tally.add(stage, "extra_letters")
            self.broken.setdefault(row_of(unit), (stage, fact))
