"""The production: rows to Kafka, and what becomes of those that it does not take.

Every message has a delivery report. librdkafka fails a whole batch of messages for one of them,
so a message is judged only by what was said when it was sent alone. What it retries itself, it
has retried until ``delivery.timeout.ms``: a report that says so tells of an outage.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from operator import itemgetter
from typing import Any, Final, NamedTuple

import pyarrow as pa

from sparkguard.core.ledger import Entry
from sparkguard.core.record import Record
from sparkguard.errors import ProduceError, TooLargeError
from sparkguard.executor.attempt import Attempt, Recovered, Trouble
from sparkguard.executor.courier import Outbound, QuietCourier
from sparkguard.executor.messages import Messages
from sparkguard.executor.plan import ORIGIN_COLUMN, Plan
from sparkguard.executor.row_letters import row_record
from sparkguard.executor.source import Source, python
from sparkguard.executor.task import StoppedError, Task
from sparkguard.executor.work import Work
from sparkguard.sinks._kafka_producer import (
    OF_THE_BATCH,
    OF_THE_MESSAGE,
    SLICE_SECONDS,
    Message,
    is_too_large,
)

_AT_ONCE: Final = 1_000
"""So many rows are made messages, and sent, before reports are looked at."""

_KEPT_ROWS: Final = 100_000
_KEPT_BYTES: Final = 64 * 2**20
"""So much is kept in case that Kafka refuses a row of it; then all reports are waited for."""

_AGAIN: Final = OF_THE_BATCH | {"_UNKNOWN_PARTITION"}
"""What is sent once more before it is judged."""

_NEWS_SECONDS: Final = 5.0
"""So long what was learned of a topic's partitions holds."""

_OF_ITS_TOPIC: Final = frozenset({"_UNKNOWN_TOPIC", "UNKNOWN_TOPIC_OR_PART"})
"""The row's own fault where it names the topic; else the topic is missing for all."""


class _Refused(NamedTuple):
    """A message that was refused: when, and whether it was sent alone."""

    row: int
    message: Message
    error: Any
    alone: bool
    at: float


class Production:
    """One task's rows on their way to Kafka."""

    def __init__(self, plan: Plan, task: Task) -> None:
        if plan.outgoing is None:
            msg = f"plan {plan.flow!r} says nothing of messages"
            raise TypeError(msg)
        self.work = Work.begin(plan, task)
        (self._step,) = plan.steps
        self._plan = plan
        self._attempt = Attempt(self.work, self._step)
        self._messages = Messages(plan.outgoing)
        self._fixed = plan.outgoing.fixed_topic
        self._refused: deque[_Refused] = deque()
        self._courier = QuietCourier(plan.producer, self._step.name, self._judge, self._meanwhile)
        self._asked: dict[str, float] = {}
        self._again: set[int] = set()
        self._kept: list[tuple[int, Source]] = []
        self._kept_bytes = 0
        self._next = 0
        self._left = 0
        self._sent = 0
        self._sent_before = 0
        self._look_at = 0.0

    def batch(self, batch: pa.RecordBatch) -> None:
        """Send the rows of one batch; returns before every report is in."""
        self._keep(batch)
        for start in range(0, len(batch), _AT_ONCE):
            part = batch.slice(start, _AT_ONCE)
            self._attempt.entered(len(part))
            self._part(part, self._next + start)
            self._hear(0)
        self._next += len(batch)
        tally = self.work.tally
        tally.records_in += len(batch)
        tally.see(batch)

    def finish(self) -> None:
        """Return when every message is delivered, or has left as its policy says.

        Raises:
            StageFailedError: the policy says so.
        """
        self._hear_all()
        tally = self.work.tally
        tally.records_out = tally.rows_out = self._courier.delivered
        if tally.records_in != self._courier.delivered + self._left:
            msg = (
                f"Stage {self._step.name!r} lost count: {tally.records_in} rows, of which "
                f"{self._courier.delivered} were delivered and {self._left} left."
            )
            raise RuntimeError(msg)

    def close(self) -> None:
        """Send nothing more: what has no report yet comes again with the task."""
        if self._courier.waits:
            self._courier.drop()

    # --- sending ----------------------------------------------------------------------------

    def _part(self, part: pa.RecordBatch, first: int) -> None:
        """Send some rows; the number of the first one in the task tells them apart."""
        shown = part.select(list(range(self._plan.layout.rows)))
        messages, bad = self._messages.over(shown)
        made = [message for message in messages if message is not None]
        rows: Iterable[int] = range(first, first + len(messages))
        if bad:
            rows = [first + at for at, message in enumerate(messages) if message is not None]
        self._sent += len(made)
        self._courier.send_all(rows, made)
        for at, error in bad:
            again = partial(self._messages.one, shown, at)
            self._leave(first + at, error, again)

    def _send(self, row: int, message: Message, *, alone: bool = False) -> None:
        self._sent += 1
        self._courier.send(row, message, alone=alone)

    def _leave(
        self, row: int, error: BaseException, again: Callable[[], Outbound] | None = None
    ) -> None:
        """Let a row leave as its policy says, unless making its message again helps."""
        progressed, self._sent_before = self._sent > self._sent_before, self._sent
        trouble = Trouble(error=error, again=again, progressed=progressed)
        met = self._attempt.failed(trouble, partial(self._record, row))
        if isinstance(met, Recovered):
            self._send(row, Message(*met.value))
        else:
            self.work.tally.add(self._step.name, met)
            self._left += 1

    def _keep(self, batch: pa.RecordBatch) -> None:
        """Keep a batch until each of its rows was heard of."""
        first = self._kept[0][0] if self._kept else self._next
        if self._next - first >= _KEPT_ROWS or self._kept_bytes >= _KEPT_BYTES:
            self._hear_all()
            self._kept.clear()
            self._again.clear()
            self._kept_bytes = 0
        self._kept.append((self._next, Source(batch, self._plan.layout)))
        self._kept_bytes += batch.nbytes

    def _record(self, number: int) -> Record:
        place = bisect_right(self._kept, number, key=itemgetter(0)) - 1
        first, source = self._kept[place]
        row, names = number - first, source.batch.schema.names
        origin = source.batch.column(ORIGIN_COLUMN)[row] if ORIGIN_COLUMN in names else None
        told = source.record(row).columns or "{}"
        return row_record(told, None if origin is None else python(origin))

    # --- hearing ----------------------------------------------------------------------------

    def _judge(self, row: int, message: Message, error: Any, alone: bool) -> None:  # noqa: FBT001
        refused = _Refused(row, message, error, alone, time.monotonic())
        self._refused.append(refused)

    def _meanwhile(self) -> None:
        """While the queue is full: an outage need not wait for the rest of the rows."""
        self._stop_if_asked()
        if self._refused and self._refused[0].error.name() not in _AGAIN:
            self._enact(self._refused.popleft())

    def _hear_all(self) -> None:
        while self._courier.waits or self._refused:
            self._hear(SLICE_SECONDS)

    def _hear(self, seconds: float) -> None:
        self._courier.poll(seconds)
        self._stop_if_asked()
        while self._refused:
            refused = self._refused.popleft()
            code = refused.error.name()
            of_batch = not refused.alone and code in OF_THE_BATCH
            if of_batch or (code == "_UNKNOWN_PARTITION" and self._asked_since(refused)):
                self._send(refused.row, refused.message, alone=True)
            else:
                self._enact(refused)
        if not self._courier.patient:
            # Each of them is then refused, for want of an answer.
            self._courier.drop(in_flight=True)

    def _enact(self, refused: _Refused) -> None:
        self._leave(refused.row, self._error(refused.message, refused.error))

    def _asked_since(self, refused: _Refused) -> bool:
        """Whether the topic's partitions were asked for since: it may have got some."""
        if refused.row in self._again:
            return False
        self._again.add(refused.row)
        topic, now = refused.message.topic, time.monotonic()
        asked = self._asked.get(topic, -_NEWS_SECONDS)
        if refused.at < asked:
            return True
        if now < asked + _NEWS_SECONDS:
            return False
        self._courier.ask_for(topic)
        self._asked[topic] = time.monotonic()
        return True

    def _error(self, message: Message, error: Any) -> ProduceError:
        name, topic = error.name(), message.topic
        told = "" if name in OF_THE_MESSAGE else self._courier.told()
        sentence = f"Kafka did not take a record for topic {topic!r}: {error.str()}{told}."
        if is_too_large(error):
            sizes = ", ".join(f"{part} {size} bytes" for part, size in _sizes(message))
            sentence = f"The record is too large for topic {topic!r}: {sizes}."
            return TooLargeError(sentence, topic=topic, code=name)
        own = name in OF_THE_MESSAGE or (self._fixed is None and name in _OF_ITS_TOPIC)
        return ProduceError(sentence, topic=topic, code=name, retriable=not own)

    def _stop_if_asked(self) -> None:
        """Look at most ten times a second whether the task is being stopped."""
        now = time.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + SLICE_SECONDS
        if self.work.task.given_up():
            raise StoppedError("Spark closed the worker's socket.")


def run(
    plan: Plan,
    count: Callable[[Entry], None] | None,
    batches: Iterable[pa.RecordBatch],
    task: Task | None = None,
) -> Iterator[pa.RecordBatch]:
    """Run a task, Spark's current one if none is given; gives no rows.

    Every batch, then every report, then the letters' acknowledgement, then the count.
    """
    task = task or Task.current(plan.stop_marker)
    production = Production(plan, task)
    work = production.work
    try:
        for batch in batches:
            production.batch(batch)
        production.finish()
        work.flush()
        if count is not None:
            count(work.tally.entry())
        yield from ()
    except StoppedError as stopped:
        raise work.stopped(stopped) from None
    finally:
        production.close()
        work.delivery.close()


def _sizes(message: Message) -> Iterator[tuple[str, int]]:
    yield "key", len(message.key or b"")
    yield "value", len(message.value or b"")
    yield "headers", sum(len(name) + len(value or b"") for name, value in message.headers or ())
