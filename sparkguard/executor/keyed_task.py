"""What all keys of a stateful stage's task share, made once a task."""

from __future__ import annotations

import copy
import datetime as dt
import decimal
import hashlib
from collections.abc import Callable, Iterable
from typing import Any, Final

from sparkguard.executor.attempt import Attempt
from sparkguard.executor.encode import Encoder
from sparkguard.executor.keyed_plan import Event, KeyedPlan, Unreadable
from sparkguard.executor.rows import UnreadableError
from sparkguard.executor.state_codec import proven, state_codec
from sparkguard.executor.work import Work

_LONG: Final = 200
"""Characters of a key that letters show; of a longer one its digest."""

_PROVEN: Final = 8
"""So many states of a task are read back to see that nothing of them is lost."""

_FIXED: Final = frozenset(
    {str, int, float, bool, bytes, type(None), decimal.Decimal}
    | {dt.datetime, dt.date, dt.time, dt.timedelta}
)
"""Types whose values nobody can change."""


class KeyedTask:
    """The parts of one task, and its counts."""

    def __init__(self, plan: KeyedPlan, work: Work) -> None:
        self.plan = plan
        self.work = work
        self.attempt = Attempt(work, plan.step)
        self.encoder = Encoder(plan.plan.shape, plan.plan.zone)
        self._encode, self.decode = state_codec(plan.keyed.state)
        self._unproven = _PROVEN
        self.encode: Callable[[Any], bytes] = self._proven
        self.call = plan.step.call()

    def given(self, event: Event) -> Any:
        """The event as the function takes it, which may change it: a retry gets it anew.

        Raises:
            UnreadableError: Python cannot hold the row.
            Exception: it is none of the event's type.
        """
        if isinstance(event.row, Unreadable):
            raise UnreadableError(event.row.said)
        row, convert = event.row, self.plan.convert
        if convert is None:
            return _own(row)
        # What is made of the row shares lists and dicts with it, and nothing else.
        return convert(row if _flat(row.values()) else _own(row))

    def left(self, fact: str, *, repeated: bool = False) -> None:
        """Count an event that has changed nothing."""
        tally, stage = self.work.tally, self.plan.step.name
        tally.records_in += 1
        tally.add(stage, fact)
        if repeated:
            tally.add(stage, "repeated")

    def _proven(self, state: Any) -> bytes:
        data = proven(state, self._encode, self.decode)
        self._unproven -= 1
        if self._unproven <= 0:
            self.encode = self._encode
        return data

    def applied(self, events: int, emitted: int) -> None:
        """Count events that changed their state."""
        tally = self.work.tally
        tally.records_in += events
        tally.records_out += events
        tally.rows_out += emitted


def _own(row: Any) -> Any:
    """The same row, of which nothing that can be changed is anybody else's."""
    kind = type(row)
    if kind is dict:
        return row.copy() if _flat(row.values()) else {name: _own(row[name]) for name in row}
    if kind is list:
        return row.copy() if _flat(row) else [_own(one) for one in row]
    if kind in _FIXED or (isinstance(row, tuple) and _flat(row)):
        return row
    return copy.deepcopy(row)


def _flat(values: Iterable[Any]) -> bool:
    return all(map(_FIXED.__contains__, map(type, values)))


def name_of(key: Any) -> str:
    """A key as text; a long one by its beginning and its digest."""
    text = key.decode("utf-8", "backslashreplace") if isinstance(key, bytes) else str(key)
    if len(text) <= _LONG:
        return text
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    return f"{text[: _LONG - 40]}… {digest}"
