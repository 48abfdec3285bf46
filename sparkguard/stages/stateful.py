"""``stateful``: a function of a key's state and an event, in one owner a key."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

from sparkguard.core.callables import is_coroutine, is_generator
from sparkguard.core.keyed import Keyed
from sparkguard.core.versions import Rules
from sparkguard.errors import StageError
from sparkguard.stages.base import P, R, Stage, record_stage, stage_name

_INT64 = 2**63


def stateful(  # noqa: PLR0913  # each is a guard of its own
    function: None = None,
    /,
    *,
    key: str,
    state: Any,
    returns: Any = None,
    name: str | None = None,
    sequence: str | None = None,
    first: int | None = None,
    event_id: str | None = None,
    expected_version: str | None = None,
    remember: int = 100,
    buffer: int = 1_000,
    gap_timeout: timedelta = timedelta(minutes=5),
    ttl: timedelta | None = None,
    on_timer: Callable[..., Any] | None = None,
) -> Callable[[Callable[P, R]], Stage[P, R]]:
    """A stage over ``(state, event) -> Update``: events change their key's state, whole or not.

    The event is what the second parameter is annotated with, read from the frame's columns; the
    state is None for a key that has none. The function should be pure: in rare cases it is called
    twice for one event, and what it did to the state it was given does not count.

    Args:
        function: none: the stage is declared with parentheses, ``@sg.stateful(key=…, state=…)``.
        key: the column whose value owns a state; text, bytes or a whole number.
        state: the state's type: a msgspec struct, dataclass, TypedDict, pydantic model or dict.
        returns: what one emitted element is, unless the annotation is ``Update[State, Element]``.
        name: the key of its settings; the function's name.
        sequence: the column of a whole number that grows with each event of a key. Events are
            ordered by it; one that is not higher than the last is refused.
        first: the number that every key's sequence begins with, if it has no gaps: then an event
            also waits for those before it.
        event_id: the column of an id that is the same when an event comes again.
        expected_version: the column of the version that an event was made for; null for any.
        remember: ids remembered for each key; each costs its size in the state.
        buffer: events of a key that may wait for a missing one; further ones fail.
        gap_timeout: how long they wait before they fail.
        ttl: how long a state lives after its last change; forgotten with it are its version, and
            the ids and numbers it knew. Without it states live for ever.
        on_timer: ``(state, now) -> Update``, called when the key's timer is due.

    Raises:
        StageError: what is said does not fit together.
    """
    columns = {
        "key": key,
        "sequence": sequence,
        "event_id": event_id,
        "expected_version": expected_version,
    }
    numbers = {"first": first, "remember": remember, "buffer": buffer}
    times = {"gap_timeout": gap_timeout, "ttl": ttl}

    def decorate(plain: Callable[P, R]) -> Stage[P, R]:
        where = stage_name(plain, name)
        wrong = next(_mistaken(columns, numbers, times), None)
        wrong = wrong or next(_no_state(state, function), None) or next(_no_timer(on_timer), None)
        if wrong is not None:
            raise StageError(wrong, stage=where)
        keyed = Keyed(
            key=key,
            state=state,
            sequence=sequence,
            event_id=event_id,
            expected_version=expected_version,
            rules=Rules(first=first, remember=remember, buffer=buffer),
            gap_timeout=gap_timeout.total_seconds(),
            ttl=None if ttl is None else ttl.total_seconds(),
            on_timer=on_timer,
        )
        wrong = next((said for is_so, said in _misfits(keyed) if is_so), None)
        if wrong is not None:
            raise StageError(wrong, stage=where)
        options = {"name": name, "returns": returns, "keyed": keyed}
        stage: Stage[Any, Any] = record_stage("stateful", plain, **options)
        return stage

    return decorate


def _mistaken(
    columns: dict[str, Any], numbers: dict[str, Any], times: dict[str, Any]
) -> Iterator[str]:
    """What is of another type than it should be."""
    for name, value in columns.items():
        if not isinstance(value, str) and (value is not None or name == "key"):
            yield f"{name}= is the name of one column, not {value!r}."
    for name, value in numbers.items():
        whole = isinstance(value, int) and not isinstance(value, bool)
        if not whole and (value is not None or name != "first"):
            yield f"{name}= is a whole number, not {value!r}."
    for name, value in times.items():
        if not isinstance(value, timedelta) and (value is not None or name != "ttl"):
            yield f"{name}= is a timedelta, as in timedelta(seconds=60), not {value!r}."


def _no_state(state: Any, function: Any) -> Iterator[str]:
    """Why states cannot be of a type."""
    if function is not None:
        yield "sg.stateful decorates with parentheses only: @sg.stateful(key=…, state=…)."
    if state is None or isinstance(state, str):
        yield f"state= is the type of a key's state, not {state!r}."
    for field in _excluded(state, set()):
        yield (
            f"the state's field {field!r} has exclude=, so it would be stored nowhere, and every "
            "event would find it as new: take that away."
        )


def _excluded(kind: Any, seen: set[int]) -> Iterator[str]:
    """Fields that pydantic leaves out, of a type and of those within it."""
    if id(kind) in seen:
        return
    seen.add(id(kind))
    fields = getattr(kind, "__pydantic_fields__", None)
    if fields is not None:
        for name, field in fields.items():
            # Of a pydantic dataclass msgspec takes all fields itself.
            left = getattr(field, "exclude", None) or getattr(field, "exclude_if", None)
            if left and hasattr(kind, "model_dump"):
                yield f"{kind.__name__}.{name}"
        parts = [getattr(field, "annotation", None) for field in fields.values()]
    elif isinstance(kind, type) and not typing.get_args(kind):
        try:
            parts = [*typing.get_type_hints(kind).values()]
        except Exception:
            # A type is not defined yet; the query's start says it if it never is.
            parts = []
    else:
        parts = [*typing.get_args(kind)]
    for part in parts:
        yield from _excluded(part, seen)


def _no_timer(on_timer: Any) -> Iterator[str]:
    """Why a timer cannot call a function."""
    if on_timer is None:
        return
    if not callable(on_timer):
        yield f"on_timer= is a function of (state, now), not {on_timer!r}."
        return
    if is_coroutine(on_timer) or is_generator(on_timer):
        yield "on_timer= is an async or generator function; make it a plain one."
    try:
        inspect.signature(on_timer).bind(None, None)
    except TypeError as error:
        yield f"on_timer= must take two arguments, (state, now): {error}."
    except ValueError:  # a function of C that describes nothing
        return


def _misfits(keyed: Keyed) -> list[tuple[bool, str]]:
    """What might be wrong with a declaration, and whether it is."""
    rules, ttl = keyed.rules, keyed.ttl
    first = rules.first
    outside = first is not None and not -_INT64 <= first < _INT64
    return [
        (not keyed.key, "key= names the column whose value owns a state."),
        (first is not None and keyed.sequence is None, "first= is of a sequence: say sequence=."),
        (outside, f"first={first} is no 64-bit number."),
        (rules.remember < 0, "remember= cannot be negative."),
        (rules.buffer < 0, "buffer= cannot be negative."),
        (keyed.gap_timeout <= 0, "gap_timeout= must be longer than nothing."),
        (ttl is not None and ttl <= 0, "ttl= must be longer than nothing."),
    ]
