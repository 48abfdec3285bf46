"""One key in one batch: its events in order, each changing the state whole or not at all.

Events are applied one after another until one fails: a *stretch*. What a stretch emits becomes
columns at its end, at once; where some of it does not fit its type, the stretch is gone through
again event by event, so that the one at fault is known and has changed nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa

from sparkguard.core.record import Record
from sparkguard.core.update import KEEP, Keep, Update
from sparkguard.core.versions import (
    Facts,
    Memory,
    Verdict,
    apply,
    judge,
    turn_over,
    wait,
)
from sparkguard.errors import (
    ConflictError,
    DuplicateError,
    GapError,
    NoKeyError,
    StageError,
    StaleError,
    StateError,
    VersionError,
)
from sparkguard.executor.attempt import Attempt, Recovered, Trouble
from sparkguard.executor.keyed_plan import Event, in_order
from sparkguard.executor.keyed_task import KeyedTask, name_of
from sparkguard.executor.row_letters import row_record
from sparkguard.executor.source import as_json
from sparkguard.executor.state_codec import excerpt

_LARGE: Final = 4_096
"""Bytes from which a state is not read back after an event that emits nothing, but at the end."""

_OFF: Final = -1

_REFUSALS: Final[dict[Verdict, tuple[type[VersionError], str]]] = {
    Verdict.DUPLICATE: (DuplicateError, "The event was applied already."),
    Verdict.STALE: (StaleError, "A later event was applied already."),
    Verdict.GAP: (GapError, "Too many events wait for a missing one."),
    Verdict.CONFLICT: (ConflictError, "The event was made for another version of the state."),
    Verdict.TAKEN: (ConflictError, "Another event has its number."),
}


class New(msgspec.Struct, frozen=True):
    """What an event made.

    Attributes:
        data, live: the state, encoded and as an object; None and `KEEP` as in an update.
        read: the object was read from what is stored, which can be read therefore.
        timer: milliseconds since 1970; None leaves it as it is.
    """

    data: bytes | Keep | None
    live: Any
    emit: list[Any]
    timer: int | None
    read: bool = True


class _Due(NamedTuple):
    """Stands for a row where the key's timer is due."""

    now: datetime


class _Refused(NamedTuple):
    event: Event
    error: VersionError
    version: int
    state: bytes | None


@dataclass(slots=True, kw_only=True)
class _Stretch:
    """Events that were applied one after another, up to `end` or to the one there that failed."""

    end: int
    accepted: int = 0
    emitted: list[Any] = field(default_factory=list)
    refused: list[_Refused] = field(default_factory=list)
    failed: BaseException | None = None


class KeyRun:
    """One key's events in one batch.

    Args:
        memory: what is stored of the key; None for nothing.
        now: milliseconds since 1970, of the batch's start.

    Attributes:
        memory: what is to be stored.
        batches: what was emitted, as serialised Arrow batches.
    """

    def __init__(self, keyed: KeyedTask, key: Any, memory: Memory | None, now: int) -> None:
        self._keyed = keyed
        self._rules = keyed.plan.keyed.rules
        self._attempt: Attempt = keyed.attempt
        self._key = key
        self._name = "" if key is None else name_of(key)
        self._now = now
        self.memory = memory or Memory()
        self.batches: list[bytes] = []
        self._live: Any = None
        self._fresh = False
        self._unread = False
        self._alone_until = 0
        self._known: dict[int, New] = {}
        self._shown: tuple[bytes | None, str] = (None, "")

    def events(self, packed: Sequence[bytes]) -> None:
        """Apply a batch's events, and those that waited for one of them.

        Raises:
            StageFailedError, StoppedError: the task ends, and nothing is stored.
        """
        memory, passed = self.memory, self.memory.passed
        waiting, memory.waiting = [one for _, one in memory.waiting], []
        self._attempt.entered(len(packed))
        self._run(self._ordered([*packed, *waiting]))
        gap = int(self._keyed.plan.keyed.gap_timeout * 1000)
        memory = self.memory
        if not memory.waiting:
            memory.deadline = None
        elif (
            memory.deadline is None
            or memory.passed != passed
            or memory.deadline > self._now + gap  # the clock went back
        ):
            memory.deadline = self._now + gap

    def due(self, at: int) -> None:
        """Do what is to be done at a time, unless the key has something else in mind by now.

        Raises:
            StageFailedError, StoppedError: as for `events`.
        """
        if self.memory.timer == at:
            self.memory.timer = None
            self._attempt.entered(1)
            now = datetime.fromtimestamp(self._now / 1000, UTC)
            self._run([(Event(_Due(now), None, Facts(), (0, 0)), b"")])
        if self.memory.deadline == at:
            waiting, self.memory.waiting, self.memory.deadline = self.memory.waiting, [], None
            for _, packed in waiting:
                said = "The event came before another one, which did not come in time."
                # They met the budget when they came: it would stop the query at each restart.
                late = self._refused(Event.unpacked(packed), GapError, said)
                self._leave(late, budgeted=False)

    def _ordered(self, packed: Sequence[bytes]) -> list[tuple[Event, bytes]]:
        events = [(Event.unpacked(one), one) for one in packed]
        numbered = self._keyed.plan.keyed.sequence is not None
        if not numbered or len({one.facts.sequence for one, _ in events}) < len(events):
            events = in_order(events)
        if numbered:
            events.sort(key=lambda one: one[0].facts.sequence or 0)
        return events

    def _run(self, events: list[tuple[Event, bytes]]) -> None:
        at = 0
        while at < len(events):
            at = self._stretch(events, at)

    def _stretch(self, events: list[tuple[Event, bytes]], start: int) -> int:
        """Apply events until one fails, and see to that one; where to go on."""
        before, alone = self.memory.copy(), start < self._alone_until
        done = self._applied(events, start, alone=alone)
        batch, misfit = self._encoded(done.emitted)
        if misfit is not None:
            self.memory, self._fresh, self._unread = before, False, False
            if not alone:
                self._alone_until = done.end
                return start
            return self._failed(start, events[start][0], Trouble(error=misfit))
        self.batches += [batch] if batch else []
        self._keyed.applied(done.accepted, len(done.emitted))
        for one in done.refused:
            self._leave(one)
        if done.failed is not None:
            event = events[done.end][0]
            again = partial(self._made, event, alone=True)
            trouble = Trouble(error=done.failed, again=again, progressed=done.accepted > 0)
            return self._failed(done.end, event, trouble)
        if done.accepted:
            self._attempt.progressed()
        return done.end

    def _applied(self, events: list[tuple[Event, bytes]], start: int, *, alone: bool) -> _Stretch:
        done = _Stretch(end=start)
        for at in range(start, start + 1 if alone else len(events)):
            event, packed = events[at]
            turned = self._refusal(event, packed)
            if turned is None:
                known = self._known.get(at)
                try:
                    new = known or self._made(event, alone=alone)
                except BaseException as raised:  # whatever user code raises is a failure (P11)
                    # It may have changed the object that it was given.
                    done.failed, self._fresh = raised, False
                    break
                self._accept(event, new)
                # It may be taken once more, so its object is not for the next event to change.
                self._fresh = self._fresh and known is None
                done.emitted += new.emit
                done.accepted += 1
            elif isinstance(turned, _Refused):
                done.refused.append(turned)
            done.end = at + 1
        return done

    def _failed(self, at: int, event: Event, trouble: Trouble) -> int:
        """Let an event leave that has changed nothing, unless trying again helped."""
        ended = self._enact(event, trouble, self.memory.version, self.memory.state)
        if isinstance(ended, Recovered):
            self._known[at] = ended.value
            return at
        turn_over(self.memory, event.facts)
        self._keyed.left(ended)
        return at + 1

    def _leave(self, refused: _Refused, *, budgeted: bool = True) -> None:
        repeated = isinstance(refused.error, DuplicateError | StaleError)
        if repeated and self._attempt.only_counted(refused.error):
            self._keyed.left("skipped", repeated=True)
            return
        trouble = Trouble(error=refused.error, progressed=False, budgeted=budgeted and not repeated)
        fact = self._enact(refused.event, trouble, refused.version, refused.state)
        # It is no sign of an outage, for which the task timeout would run.
        self._attempt.progressed()
        self._keyed.left(str(fact), repeated=repeated)

    def _enact(
        self, event: Event, trouble: Trouble, version: int, state: bytes | None
    ) -> Recovered | str:
        kafka = self._keyed.plan.kafka
        if self._shown[0] is not state:
            self._shown = state, excerpt(state, self._keyed.plan.step.policy.redact)
        facts = {
            "payload": "record" if kafka and not isinstance(event.row, _Due) else "row",
            "state_key": self._name,
            "state_version": version,
            "state": self._shown[1] if state else "",
        }

        def read() -> Record:
            if isinstance(event.row, _Due):
                # A key's timers fail with letters of their own.
                return row_record(as_json({"timer": event.row.now.isoformat()}), None)
            return event.record(kafka=kafka)

        return self._attempt.failed(replace(trouble, facts=facts), read)

    def _refusal(self, event: Event, packed: bytes) -> _Refused | Verdict | None:
        """Why an event is not applied; None if it is, a verdict if it waits."""
        memory, keyed = self.memory, self._keyed.plan.keyed
        if isinstance(event.row, _Due):
            return None
        if self._key is None:
            said = f"The event has no key: its column {keyed.key!r} is null or no text."
            return self._refused(event, NoKeyError, said)
        if event.facts.sequence is None and keyed.sequence is not None:
            said = f"The event has no number: its column {keyed.sequence!r} is null."
            return self._refused(event, NoKeyError, said)
        verdict = judge(memory, event.facts, self._rules)
        if verdict is Verdict.CONFLICT or verdict is Verdict.DUPLICATE:
            turn_over(memory, event.facts)
        elif verdict is Verdict.GAP:
            verdict = wait(memory, event.facts.sequence or 0, packed, self._rules)
            if verdict is Verdict.ACCEPT:
                return Verdict.GAP
            if verdict is Verdict.DUPLICATE and self._another_waits(event.facts):
                verdict = Verdict.TAKEN
        if verdict is Verdict.ACCEPT:
            return None
        return self._refused(event, *_REFUSALS[verdict])

    def _another_waits(self, facts: Facts) -> bool:
        """Whether the event that waits with this number is one of another id."""
        waits = next(packed for number, packed in self.memory.waiting if number == facts.sequence)
        known = Event.unpacked(waits).facts.event_id
        return known is not None and facts.event_id is not None and known != facts.event_id

    def _refused(self, event: Event, kind: type[VersionError], said: str) -> _Refused:
        memory = self.memory
        error = kind(said, key=self._name, version=memory.version)
        return _Refused(event, error, memory.version, memory.state)

    def _made(self, event: Event, *, alone: bool) -> New:
        """What the user's function makes of an event; stores nothing."""
        state, on_timer = self._state(), self._keyed.plan.keyed.on_timer
        if isinstance(event.row, _Due):
            update = None if on_timer is None else on_timer(state, event.row.now)
        else:
            update = self._keyed.call(state, self._keyed.given(event))
        if not isinstance(update, Update):
            msg = f"The function returned {type(update).__name__}, which is no sparkguard.Update."
            raise TypeError(msg)
        emit, timer = list(update.emit), self._due_at(update.timer)
        if update.state is None or update.state is KEEP:
            return New(update.state, None, emit, timer)
        data = self._keyed.encode(update.state)
        # What is emitted may be the state itself, which the next event must not change.
        read = alone or bool(emit) or len(data) < _LARGE
        return New(data, self._read(data) if read else update.state, emit, timer, read)

    def _state(self) -> Any:
        """The state for one call: what that does to it is nobody else's."""
        data = self.memory.state
        if self._fresh or data is None:
            return self._live if self._fresh else None
        try:
            return self._keyed.decode(data)
        except Exception as error:
            kind = getattr(self._keyed.plan.keyed.state, "__name__", "its type")
            msg = (
                f"The stored state of key {self._name!r}, version {self.memory.version}, cannot be "
                f"read as {kind}: {error}"
            )
            raise StateError(msg) from None

    def _read(self, data: bytes) -> Any:
        try:
            return self._keyed.decode(data)
        except Exception as error:
            kind = getattr(self._keyed.plan.keyed.state, "__name__", "its type")
            msg = f"The new state cannot be read back as {kind}: {error}"
            raise TypeError(msg) from error

    def _accept(self, event: Event, new: New) -> None:
        memory = self.memory
        if new.data is None:
            # The key is as new; what waits has not had its turn.
            self.memory = Memory(waiting=memory.waiting, deadline=memory.deadline)
        else:
            apply(memory, event.facts, self._rules, new.data)
        if new.timer is not None:
            self.memory.timer = None if new.timer == _OFF else new.timer
        if new.data is KEEP:
            # The function may have changed the object that it was given.
            self._fresh = False
        else:
            self._live, self._fresh, self._unread = new.live, True, not new.read

    def _due_at(self, timer: Any) -> int | None:
        if timer is None:
            return None
        if timer == "off":
            return _OFF
        if self._keyed.plan.keyed.on_timer is None:
            msg = "an Update sets a timer, and the stage has no on_timer=."
            raise StageError(msg, stage=self._keyed.plan.step.name)
        if isinstance(timer, timedelta):
            due = self._now + int(timer.total_seconds() * 1000)
        elif isinstance(timer, datetime) and timer.tzinfo is not None:
            due = int(timer.timestamp() * 1000)
        else:
            msg = f"A timer is a timedelta, a datetime with a zone, or 'off', not {timer!r}."
            raise TypeError(msg)
        # One that is due already fires with the next batch.
        return max(due, self._now + 1)

    def _encoded(self, emitted: list[Any]) -> tuple[bytes | None, Exception | None]:
        """What was emitted as one Arrow batch, or what is wrong with it or with the state."""
        memory = self.memory
        if self._unread and memory.state is not None:
            try:
                self._read(memory.state)
            except TypeError as error:
                return None, error
        self._unread = False
        if not emitted:
            return None, None
        arrays, bad = self._keyed.encoder.encode(emitted)
        if bad:
            return None, bad[0][1]
        made = pa.RecordBatch.from_arrays(arrays, schema=self._keyed.encoder.schema)
        return made.serialize().to_pybytes(), None
