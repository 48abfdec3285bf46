"""Fingerprint: an exception as text that fits a letter, and what groups it.

Rendering a stack trace costs about 46 µs, a failing record must not. What depends
only on the place in the code (frames as text, fingerprint) is kept by type and
frames, so a failure that repeats costs the message and a few look-ups.
"""

from __future__ import annotations

import hashlib
import linecache
import os
import re
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, TracebackType
from typing import Any, NamedTuple

from sparkguard.core.text import utf8

_LINKS = 8
_FRAMES = 16
_PLACES = 512
_LINE = 200
_MESSAGE_IN_TRACE = 1_000
# A secret that the limit would cut in two must still match its pattern.
_OVERLAP = 256

_PACKAGE = f"{Path(__file__).parent.parent}{os.sep}"
_STDLIB = f"{sysconfig.get_path('stdlib')}{os.sep}"
_NOT_USERS = re.compile(
    rf"<frozen |{re.escape(_PACKAGE)}|{re.escape(_STDLIB)}(?!site-packages|dist-packages)"
    r"|.*(?:-packages|python|pyspark\.zip)[/\\]pyspark[/\\]"
    r"|.*(?:-packages|py4j-[\w.-]+\.zip)[/\\]py4j[/\\]"
)
_RAISED_FROM = "The above exception was the direct cause of the following exception:"
_RAISED_DURING = "During handling of the above exception, another exception occurred:"


_Redact = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Described:
    """An exception as text.

    Attributes:
        types: qualified names of its class and bases, nearest first, without ``object``.
        message: bounded and redacted ``str`` of it.
        trace: bounded and redacted stack trace, chained exceptions included.
        fingerprint: 16 hexadecimal digits, equal for one type at one place in the
            code: type and user's frames (file name, function, line within the
            function) of the exception and of those it was raised from. Whatever
            stands above a function may change without changing it, the message too.
    """

    types: tuple[str, ...]
    message: str
    trace: str
    fingerprint: str


class _Place(NamedTuple):
    """What is the same whenever a type is raised at one place."""

    types: tuple[str, ...]
    frames: str
    digest: str
    # Held so that the ids in the cache's key stay theirs.
    held: tuple[Any, ...]


_places: dict[tuple[object, ...], _Place] = {}
_names: dict[type, tuple[str, ...]] = {}


def canonical(name: str) -> str:
    """The spelling of a qualified class name that is used throughout.

    Builtins go without their module; confluent-kafka's C classes by the module
    that exports them.
    """
    head, dot, rest = name.partition(".")
    match head:
        case "builtins":
            return rest
        case "cimpl":
            return f"confluent_kafka.{rest}"
        case _:
            return f"{head}{dot}{rest}".replace("confluent_kafka.cimpl.", "confluent_kafka.", 1)


def type_names(cls: type) -> tuple[str, ...]:
    """Qualified names of a class and its bases, nearest first, without ``object``."""
    names = _names.get(cls)
    if names is None:
        bases = cls.__mro__[:-1]
        names = tuple(utf8(canonical(f"{base.__module__}.{base.__qualname__}")) for base in bases)
        if len(_names) >= _PLACES:
            _names.clear()
        _names[cls] = names
    return names


def describe(error: BaseException, *, redact: Sequence[str] = (), limit: int = 8192) -> Described:
    """`error` as text. Never raises.

    Args:
        error: the live exception, with its traceback where it has one.
        redact: regular expressions; what matches is masked in message and trace.
        limit: characters of the message, and of the trace, which keeps its end.
    """
    try:
        return _describe(error, tuple(redact), limit)
    except Exception as problem:
        # An exception class may do anything in its attributes; the letter is written all the same.
        name = type(error).__name__
        note = f"(not described: {type(problem).__name__})"
        return Described((str(name),), note, "", _digest(str(name)))


def _describe(error: BaseException, redact: _Redact, limit: int) -> Described:
    place = _place(error, redact)
    message = _message(error, limit, redact)
    parts = [_part(error, place, message, redact)]
    digests = [place.digest]
    explicit = True
    for link, joint in _chain(error):
        explicit = explicit and joint is _RAISED_FROM
        at = _place(link, redact)
        said = _message(link, _MESSAGE_IN_TRACE, redact)
        parts += (f"\n{joint}\n\n", _part(link, at, said, redact))
        if explicit:
            digests.append(at.digest)
    trace = "".join(reversed(parts))
    if len(trace) > limit:
        trace = f"…{trace[len(trace) - limit + 1 :]}" if limit > 0 else ""
    digest = digests[0] if len(digests) == 1 else _digest("".join(digests))
    return Described(place.types, message, trace, digest)


def _chain(error: BaseException) -> Iterator[tuple[BaseException, str]]:
    seen = {id(error)}
    while len(seen) <= _LINKS:
        joint = _RAISED_FROM
        link = error.__cause__
        if link is None and not error.__suppress_context__:
            link, joint = error.__context__, _RAISED_DURING
        if link is None or id(link) in seen:
            return
        yield link, joint
        seen.add(id(link))
        error = link


def _place(error: BaseException, redact: _Redact) -> _Place:
    cls = type(error)
    key: list[object] = [id(cls), redact]
    step = error.__traceback__
    while step is not None:
        key += (id(step.tb_frame.f_code), step.tb_lasti)
        step = step.tb_next
    known = tuple(key)
    place = _places.get(known)
    if place is None:
        place = _render(cls, error.__traceback__, redact)
        if len(_places) >= _PLACES:
            _places.clear()
        _places[known] = place
    return place


def _render(cls: type[BaseException], traceback: TracebackType | None, redact: _Redact) -> _Place:
    steps = []
    while traceback is not None:
        steps.append(traceback)
        traceback = traceback.tb_next
    codes = tuple(step.tb_frame.f_code for step in steps)
    names = type_names(cls)
    frames = _masked(utf8(_frames(steps, redact)), redact)
    return _Place(names, frames, _place_digest(cls, names, steps), (cls, codes))


def _frames(steps: list[TracebackType], redact: _Redact) -> str:
    first = next(
        (i for i, step in enumerate(steps) if not _file(step.tb_frame.f_code).startswith(_PACKAGE)),
        0,
    )
    shown = steps[first:]
    if not shown:
        return ""
    lines = ["Traceback (most recent call last):\n"]
    left_out = len(shown) - 2 * _FRAMES
    for index, step in enumerate(shown):
        if left_out > 0 and _FRAMES <= index < _FRAMES + left_out:
            if index == _FRAMES:
                lines.append(f"  … {left_out} frames …\n")
            continue
        lines.append(_frame(step, redact))
    return "".join(lines)


def _frame(step: TracebackType, redact: _Redact) -> str:
    code = step.tb_frame.f_code
    line = _bounded(_source(step), _LINE, redact)
    text = f"    {line}\n" if line else ""
    return f'  File "{_file(code)}", line {step.tb_lineno}, in {code.co_name}\n{text}'


def _source(step: TracebackType) -> str:
    try:
        frame = step.tb_frame
        line = linecache.getline(_file(frame.f_code), step.tb_lineno or 0, frame.f_globals)
        return line.strip()
    except Exception:
        # A module's loader may fail to give its source; the trace goes without the line.
        return ""


def _place_digest(cls: type, names: tuple[str, ...], steps: list[TracebackType]) -> str:
    endless = issubclass(cls, RecursionError)
    places: dict[str, None] = {}
    for step in steps:
        code = step.tb_frame.f_code
        if _NOT_USERS.match(_file(code)):
            continue
        line = (step.tb_lineno or code.co_firstlineno) - code.co_firstlineno
        at = f"{Path(_file(code)).name}\0{code.co_qualname}\0{line}"
        # How deep a recursion was, and where its end happened to be, is chance.
        if endless and at in places:
            break
        places[at] = None
    return _digest("\1".join((names[0], *places)))


def _file(code: CodeType) -> str:
    return code.co_filename


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def _part(error: BaseException, place: _Place, message: str, redact: _Redact) -> str:
    if len(message) > _MESSAGE_IN_TRACE:
        message = f"{message[:_MESSAGE_IN_TRACE]}…"
    last = f"{place.types[0]}: {message}\n" if message else f"{place.types[0]}\n"
    notes = error.__dict__.get("__notes__")
    if isinstance(notes, list):
        last += "".join(f"{_bounded(note, _LINE, redact)}\n" for note in notes[:_LINKS])
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions[:_LINKS]:
            last += f"  | {type_names(type(each))[0]}: {_message(each, _LINE, redact)}\n"
    return place.frames + last


def _message(error: BaseException, limit: int, redact: _Redact) -> str:
    try:
        return _bounded(str(error), limit, redact)
    except BaseException as problem:
        # Not even a SystemExit in `__str__` is a wish to exit.
        return f"(no message: str() raised {type(problem).__name__})"[: max(limit, 0)]


def masked(text: str, limit: int, redact: Sequence[str] = ()) -> str:
    """At most so many characters of a text, what the patterns match masked."""
    return _bounded(text, limit, tuple(redact))


def _bounded(text: object, limit: int, redact: _Redact) -> str:
    if not isinstance(text, str) or limit <= 0:
        return ""
    # Also turns a subclass of str into a plain one.
    kept = utf8(str.__getitem__(text, slice(0, limit + _OVERLAP)))
    if redact:
        kept = _masked(kept, redact)
        if str.__len__(text) > limit + _OVERLAP:
            # What was masked made room for the end, where a secret may be cut in two.
            kept = kept[:-_OVERLAP]
    return kept if len(kept) <= limit else f"{kept[: limit - 1]}…"


def _masked(text: str, redact: _Redact) -> str:
    try:
        for pattern in redact:
            text = re.sub(pattern, "***", text)
    except re.error:
        return "(hidden: a redact pattern is no regular expression)"
    return text
