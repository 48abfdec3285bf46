"""What all keys of a stateful stage's task share, made once a task."""

from __future__ import annotations

import hashlib
from typing import Any, Final

from sparkguard.executor.attempt import Attempt
from sparkguard.executor.encode import Encoder
from sparkguard.executor.keyed_plan import Event, KeyedPlan, Unreadable
from sparkguard.executor.rows import UnreadableError
from sparkguard.executor.state_codec import state_codec
from sparkguard.executor.work import Work

_LONG: Final = 200
"""Characters of a key that letters show; of a longer one its digest."""


class KeyedTask:
    """The parts of one task, and its counts."""

    def __init__(self, plan: KeyedPlan, work: Work) -> None:
        self.plan = plan
        self.work = work
        self.attempt = Attempt(work, plan.step)
        self.encoder = Encoder(plan.plan.shape, plan.plan.zone)
        self.encode, self.decode = state_codec(plan.keyed.state)
        self.call = plan.step.call()

    def given(self, event: Event) -> Any:
        """The event as the function takes it.

        Raises:
            UnreadableError: Python cannot hold the row.
            Exception: it is none of the event's type.
        """
        if isinstance(event.row, Unreadable):
            raise UnreadableError(event.row.said)
        return event.row if self.plan.convert is None else self.plan.convert(event.row)

    def left(self, fact: str, *, repeated: bool = False) -> None:
        """Count an event that has changed nothing."""
        tally, stage = self.work.tally, self.plan.step.name
        tally.records_in += 1
        tally.add(stage, fact)
        if repeated:
            tally.add(stage, "repeated")

    def applied(self, events: int, emitted: int) -> None:
        """Count events that changed their state."""
        tally = self.work.tally
        tally.records_in += events
        tally.records_out += events
        tally.rows_out += emitted


def name_of(key: Any) -> str:
    """A key as text; a long one by its beginning and its digest."""
    text = key.decode("utf-8", "backslashreplace") if isinstance(key, bytes) else str(key)
    if len(text) <= _LONG:
        return text
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    return f"{text[: _LONG - 40]}… {digest}"
