"""The production: rows to Kafka, and what becomes of those that it does not take.

Every message has a delivery report. librdkafka fails a whole batch of messages for one of them,
so a message is judged only by what was said when it was sent alone. What it retries itself, it
has retried until ``delivery.timeout.ms``: a report that says so tells of an outage.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import repeat
from typing import Any, Final

import pyarrow as pa

from sparkguard.core.ledger import Entry
from sparkguard.core.record import Record
from sparkguard.errors import ProduceError, TooLargeError
from sparkguard.executor.attempt import Attempt, Recovered, Trouble
from sparkguard.executor.messages import Messages
from sparkguard.executor.plan import ORIGIN_COLUMN, Plan
from sparkguard.executor.row_letters import row_record
from sparkguard.executor.source import Source, python
from sparkguard.executor.task import StoppedError, Task
from sparkguard.executor.work import Work
from sparkguard.sinks._kafka_producer import SLICE_SECONDS, Message, QuietCourier, is_too_large

_AT_ONCE: Final = 1_000
"""So many rows are made messages, and sent, before reports are looked at."""

_OF_THE_BATCH: Final = frozenset(
    {
        "MSG_SIZE_TOO_LARGE",
        "RECORD_LIST_TOO_LARGE",
        "INVALID_MSG",
        "INVALID_RECORD",
        "INVALID_TIMESTAMP",
        "POLICY_VIOLATION",
        "UNSUPPORTED_FOR_MESSAGE_FORMAT",
        "_INVALID_DIFFERENT_RECORD",
    }
)
"""What a batch is refused for: it says nothing about each of its messages."""

_OF_THE_MESSAGE: Final = _OF_THE_BATCH | {"_UNKNOWN_PARTITION", "TOPIC_EXCEPTION"}
"""What a message is refused for, and would be again."""

_OF_ITS_TOPIC: Final = frozenset({"_UNKNOWN_TOPIC", "UNKNOWN_TOPIC_OR_PART"})
"""The row's own fault where it names the topic; else the topic is missing for all."""


_Sent = tuple[Source, int, Message]
"""The row that a message was made of, and the message."""


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
        self._courier: QuietCourier[_Sent] = QuietCourier(
            plan.producer, self._step.name, self._judge, self._stop_if_asked
        )
        self._refused: deque[tuple[_Sent, Any, bool]] = deque()
        self._left = 0
        self._sent = 0
        self._sent_before = 0
        self._look_at = 0.0

    def batch(self, batch: pa.RecordBatch) -> None:
        """Send the rows of one batch; returns before every report is in."""
        source = Source(batch, self._plan.layout)
        for start in range(0, len(batch), _AT_ONCE):
            part = batch.slice(start, _AT_ONCE)
            self._attempt.entered(len(part))
            self._part(source, part, start)
            self._hear(0)
        tally = self.work.tally
        tally.records_in += len(batch)
        tally.see(batch)

    def finish(self) -> None:
        """Return when every message is delivered, or has left as its policy says.

        Raises:
            StageFailedError: the policy says so.
        """
        while self._courier.waits or self._refused:
            self._hear(SLICE_SECONDS)
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

    def _part(self, source: Source, part: pa.RecordBatch, start: int) -> None:
        shown = part.select(list(range(self._plan.layout.rows)))
        messages, bad = self._messages.over(shown)
        made = [message for message in messages if message is not None]
        lost = {at for at, _ in bad}
        rows = [start + at for at in range(len(messages)) if at not in lost]
        self._sent += len(made)
        self._courier.send_all(zip(repeat(source), rows, made, strict=False), made)
        for at, error in bad:
            again = partial(self._messages.one, shown, at)
            self._leave(source, start + at, error, again)

    def _send(self, sent: _Sent, *, alone: bool = False) -> None:
        self._sent += 1
        self._courier.send(sent, sent[2], alone=alone)

    def _leave(
        self,
        source: Source,
        row: int,
        error: BaseException,
        again: Callable[[], Message] | None = None,
    ) -> None:
        """Let a row leave as its policy says, unless making its message again helps."""
        progressed, self._sent_before = self._sent > self._sent_before, self._sent
        trouble = Trouble(error=error, again=again, progressed=progressed)
        met = self._attempt.failed(trouble, partial(self._record, source, row))
        if isinstance(met, Recovered):
            self._send((source, row, met.value))
        else:
            self.work.tally.add(self._step.name, met)
            self._left += 1

    def _record(self, source: Source, row: int) -> Record:
        names = source.batch.schema.names
        origin = source.batch.column(ORIGIN_COLUMN)[row] if ORIGIN_COLUMN in names else None
        told = source.record(row).columns or "{}"
        return row_record(told, None if origin is None else python(origin))

    # --- hearing ----------------------------------------------------------------------------

    def _judge(self, sent: _Sent, error: Any, /, *, alone: bool) -> None:
        self._refused.append((sent, error, alone))

    def _hear(self, seconds: float) -> None:
        self._courier.poll(seconds)
        self._stop_if_asked()
        while self._refused:
            sent, error, alone = self._refused.popleft()
            if not alone and error.name() in _OF_THE_BATCH:
                self._send(sent, alone=True)
            else:
                source, row, message = sent
                self._leave(source, row, self._error(message, error))
        if not self._courier.patient:
            # Each of them is then refused, for want of an answer.
            self._courier.drop(in_flight=True)

    def _error(self, message: Message, error: Any) -> ProduceError:
        name, topic = error.name(), message.topic
        told = "" if name in _OF_THE_MESSAGE else self._courier.told()
        sentence = f"Kafka did not take a record for topic {topic!r}: {error.str()}{told}."
        if is_too_large(error):
            sizes = ", ".join(f"{part} {size} bytes" for part, size in _sizes(message))
            sentence = f"The record is too large for topic {topic!r}: {sizes}."
            return TooLargeError(sentence, topic=topic, code=name)
        own = name in _OF_THE_MESSAGE or (self._fixed is None and name in _OF_ITS_TOPIC)
        return ProduceError(sentence, topic=topic, code=name, retriable=not own)

    def _stop_if_asked(self) -> None:
        """Look at most ten times a second whether the task is being stopped."""
        now = time.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + SLICE_SECONDS
        if self.work.task.cancelled():
            raise StoppedError("The task is being stopped.")


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
