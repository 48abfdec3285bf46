"""The tally: what one task counts, and the entry it sends to the ledger."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from sparkguard.core.failure import Failure
from sparkguard.core.ledger import FACTS, Counts, Entry, Span, Top
from sparkguard.executor.plan import Plan
from sparkguard.executor.task import Task

_TOP = 20


class Tally:
    """Counts of one task; the good path touches it once a batch."""

    def __init__(self, plan: Plan, task: Task) -> None:
        self._plan = plan
        self._task = task
        self.records_in = 0
        self.records_out = 0
        self.rows_out = 0
        self.stages: dict[str, Counts] = {step.name: dict.fromkeys(FACTS, 0) for step in plan.steps}
        self._spans: dict[tuple[str, int], Span] = {}
        self._top: dict[tuple[str, str], list[Any]] = {}
        self._first = b""
        self._last: pa.RecordBatch | None = None

    def state(self) -> tuple[Any, ...]:
        """What was counted so far, but for what came in: for another process to go on with."""
        return self.stages, self.records_out, self.rows_out, self._top

    def restore(self, state: tuple[Any, ...]) -> None:
        """Go on from a `state`."""
        self.stages, self.records_out, self.rows_out, self._top = state

    def add(self, stage: str, fact: str, count: int = 1) -> None:
        """Count a fact of a stage."""
        self.stages[stage][fact] += count

    def failed(self, failure: Failure) -> int:
        """Count a failure under its fingerprint; how often it was seen in this task."""
        place = (failure.stage, failure.fingerprint)
        seen = self._top.get(place)
        if seen is None:
            if len(self._top) >= _TOP:
                return 0
            seen = self._top[place] = [failure, 0]
        seen[1] += 1
        return int(seen[1])

    def failed_again(self, like: Failure) -> bool:
        """Count one more failure like a known one, unless that would be worth a line of its own."""
        seen = self._top.get((like.stage, like.fingerprint))
        if seen is None:
            return len(self._top) >= _TOP
        if worth_a_line(seen[1] + 1):
            return False
        seen[1] += 1
        return True

    def cover(self, spans: Iterable[Span]) -> None:
        """Widen the source ranges by those of a batch."""
        for span in spans:
            place = (span.topic, span.partition)
            known = self._spans.get(place, span)
            self._spans[place] = Span(
                topic=span.topic,
                partition=span.partition,
                first=min(known.first, span.first),
                last=max(known.last, span.last),
            )

    def see(self, batch: pa.RecordBatch) -> None:
        """Remember the first and the last row of a source without offsets."""
        if batch.num_rows and not self._spans:
            self._first = self._first or bytes(batch.slice(0, 1).serialize())
            self._last = batch.slice(batch.num_rows - 1, 1)

    def _part(self) -> str:
        """Tells passes over other rows apart; equal for every evaluation of the same rows."""
        if self._last is None:
            return ""
        digest = hashlib.blake2b(self._first, digest_size=16)
        digest.update(bytes(self._last.serialize()))
        digest.update(str(self.records_in).encode())
        return digest.hexdigest()

    def entry(self) -> Entry:
        """The finished task's entry."""
        return Entry(
            flow=self._plan.flow,
            use=self._plan.use,
            query_id=self._task.query_id,
            run_id=self._task.run_id,
            batch_id=self._task.batch_id,
            stage_id=self._task.stage_id,
            partition=self._task.partition,
            attempt=self._task.task_attempt_id,
            part=self._part(),
            spans=tuple(self._spans[place] for place in sorted(self._spans)),
            records_in=self.records_in,
            records_out=self.records_out,
            rows_out=self.rows_out,
            stages=self.stages,
            top=tuple(_top(failure, count) for failure, count in self._top.values()),
        )


def worth_a_line(seen: int) -> bool:
    """Whether it is the 1st, 10th, 100th …: a flood of one failure is a handful of lines."""
    return seen > 0 and str(seen).strip("0") == "1"


def _top(failure: Failure, count: int) -> Top:
    return Top(
        stage=failure.stage,
        fingerprint=failure.fingerprint,
        cause=failure.cause.value,
        exception_type=failure.exception_type,
        message=failure.message[:200],
        coordinates=failure.record.coordinates,
        count=count,
    )
