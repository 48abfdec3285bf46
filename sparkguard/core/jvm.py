"""Classify what comes out of the JVM: pyspark's errors, py4j's, and bare text.

The original exception never crosses from a worker or from Java, so its kind is
read from error conditions and SQLSTATEs along the chain of causes, the deepest
first (the outer ones only say where it surfaced), then from the text.
`InterruptedException` is no business of this module: a stop is no failure (P12).
"""

from __future__ import annotations

import builtins
import errno
import re
import sys
from collections.abc import Iterator
from typing import Any

from sparkguard.core.failure import Cause
from sparkguard.core.fingerprint import canonical, type_names
from sparkguard.core.known import (
    AWS,
    BY_CLASS,
    CONDITIONS,
    ERRNO,
    JAVA,
    KAFKA,
    PASSED_ON,
    PHRASES,
    SQLSTATE,
)
from sparkguard.errors import StageFailedError

_LINKS = 32
_TEXT = 200_000
_TRACEBACK = "Traceback (most recent call last)"
_HANDLING = "During handling of the above exception, another exception occurred:"
_RAISED = re.compile(
    r"^(?P<name>[A-Za-z_][\w.]*)(?:: (?:\[Errno (?P<errno>\d+)\]|KafkaError\{code=(?P<kafka>\w+)"
    r"|An error occurred \((?P<aws>\w+)\))?|:?$)",
    re.MULTILINE,
)
_STATE = re.compile(
    r"\[(?P<condition>[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+(?:\.[A-Z0-9_]+)?)\]"
    r"|SQLSTATE: (?P<state>[0-9A-Z]{5})\b"
)
_JAVA_CLASS = re.compile(r"\b[a-z]\w*(?:\.[a-z]\w*)+\.[A-Z]\w*")


def classify_sqlstate(state: object) -> Cause | None:
    """The cause for an SQLSTATE, by the whole or else by its class."""
    if not isinstance(state, str) or len(state) != 5:  # noqa: PLR2004 - by definition
        return None
    return SQLSTATE.get(state) or SQLSTATE.get(state[:2])


def classify_condition(condition: object) -> Cause | None:
    """The cause for one of Spark's error conditions, by the whole or by its main part."""
    if not isinstance(condition, str):
        return None
    return CONDITIONS.get(condition) or CONDITIONS.get(condition.partition(".")[0])


def classify_jvm(error: BaseException) -> Cause | None:
    """The cause of a PySparkException or a Py4JJavaError, None where nothing tells.

    May raise whatever a dead gateway raises while the text is read.
    """
    by_state = by_class = None
    for link in _links(error):
        condition = _text_of(link, "getCondition")
        if condition not in PASSED_ON:
            state = _text_of(link, "getSqlState") or _text_of(link, "getSQLState")
            by_state = classify_condition(condition) or classify_sqlstate(state) or by_state
        if not isinstance(link, BaseException):
            by_class = JAVA.get(_text_of(_call(link, "getClass"), "getName") or "") or by_class
    if by_state is not None:
        return by_state
    text = str(error)
    # A worker that was killed is met as an end of file or as a reset connection, by chance.
    return _by_words(text) or by_class or classify_text(text)


def classify_text(text: str) -> Cause | None:
    """The cause of a failure that reached the driver as text only, None where nothing tells.

    Reads, in this order: our own marker, the exceptions of a worker's traceback,
    the innermost ``[CONDITION]`` or SQLSTATE, Spark's phrases, Java classes.
    """
    ours = StageFailedError.find(text)
    if ours is not None:
        return carried_cause(ours)
    text = text[:_TEXT]
    return _by_traceback(text) or _by_state(text) or _by_phrase(text)


def carried_cause(error: StageFailedError) -> Cause | None:
    """The cause that a stage's failure carries through text."""
    try:
        return Cause(error.facts["cause"])
    except (KeyError, ValueError):
        return None


def _links(error: BaseException) -> Iterator[Any]:
    link: Any = error
    for _ in range(_LINKS):
        yield link
        thrown = link.__dict__.get("java_exception") if isinstance(link, BaseException) else None
        if thrown is not None:
            link = thrown
        elif isinstance(link, BaseException):
            link = getattr(link, "_cause", None)
        else:
            link = _call(link, "getCause")
        if link is None:
            return


def _call(thing: Any, method: str) -> Any:
    try:
        return getattr(thing, method)()
    except Exception:
        # Most throwables lack most of these methods, and py4j says so by raising.
        return None


def _text_of(thing: Any, method: str) -> str | None:
    found = _call(thing, method)
    return found if isinstance(found, str) else None


def _by_traceback(text: str) -> Cause | None:
    start = text.find(_TRACEBACK)
    if start < 0:
        return None
    found = None
    for match in _RAISED.finditer(text[start:].rpartition(_HANDLING)[2]):
        cause = _by_code(match) or _by_name(canonical(match["name"]))
        if cause is not None and cause is not Cause.POISON:
            return cause
        found = found or cause
    return found


def _by_code(match: re.Match[str]) -> Cause | None:
    if match["errno"] and match["name"] == "OSError":
        return ERRNO.get(errno.errorcode.get(int(match["errno"]), ""))
    return KAFKA.get(match["kafka"] or "") or AWS.get(match["aws"] or "")


def _by_name(name: str) -> Cause | None:
    module, _, last = name.rpartition(".")
    home = sys.modules.get(module) if module else builtins
    known = vars(home).get(last) if home is not None else None
    names = type_names(known) if isinstance(known, type) else (name,)
    return next((BY_CLASS[each] for each in names if each in BY_CLASS), None)


def _by_state(text: str) -> Cause | None:
    # An SQLSTATE stands behind its condition's message, and those of the outer ones behind it.
    found, wanted = None, True
    for match in _STATE.finditer(text):
        if match["condition"]:
            cause = classify_condition(match["condition"])
            wanted = cause is None and match["condition"] not in PASSED_ON
        else:
            cause = classify_sqlstate(match["state"]) if wanted else None
            wanted = False
        found = cause or found
    return found


def _by_words(text: str) -> Cause | None:
    return next((cause for phrase, cause in PHRASES.items() if phrase in text), None)


def _by_phrase(text: str) -> Cause | None:
    found = _by_words(text)
    if found is not None:
        return found
    for match in _JAVA_CLASS.finditer(text):
        found = JAVA.get(match[0], found)
    return found
