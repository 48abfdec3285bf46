"""Classify: what kind of thing an exception is, by the names in `known`.

No library is imported for it: a class is known by its qualified name. The order:

1. what the settings (``classify:``) and plugins say about the exception's classes;
2. the built-in table: codes first (errno, HTTP status, SQLSTATE, …), then classes,
   the most specific one;
3. an exception that is unknown or looks like poison is judged by the one that it
   was raised *from*: ``raise OrderFailed(…) from timeout`` is transient. Only this
   explicit form counts. An exception that was merely being handled when another
   one was raised says nothing about why (a fallback that fails, a clean-up);
4. else poison: of an unknown kind, so the record is put aside and the rest goes on.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from types import ModuleType
from typing import Any

from sparkguard.core.failure import Cause
from sparkguard.core.fingerprint import canonical, type_names
from sparkguard.core.jvm import (
    carried_cause,
    classify_jvm,
    classify_sqlstate,
)
from sparkguard.core.known import (
    AWS,
    BY_CLASS,
    ERRNO,
    HTTP,
    KAFKA,
    SQLITE,
    STATUS_OF,
    WRAPPERS,
)

_LINKS = 32
_EXCEPTIONS = 256
_MEMBERS = 64
_GET = BaseException.__getattribute__
_FACTS = ("sqlstate", "pgcode", "response", "status_code")
_WORST_FIRST = (Cause.FATAL, Cause.PROGRAMMING, Cause.POISON, Cause.TRANSIENT)

Extra = tuple[tuple[str, Cause], ...]
_Rule = Callable[[Any], Cause | None]


def classify(error: BaseException, extra: Sequence[tuple[str, Cause]] = ()) -> Cause:
    """The cause of `error`. Never raises and never waits.

    Args:
        error: the live exception.
        extra: (qualified class name, cause) of the settings and plugins; covers
            subclasses, the most specific class first, the first of equal names.
    """
    try:
        known = None if extra else _plainly(error)
        return known or _through(error, tuple(extra), set()) or Cause.POISON
    except Exception:
        # An exception class may do anything in its attributes; it must not stop the pass.
        return Cause.POISON if isinstance(error, Exception) else Cause.FATAL


def _plainly(error: BaseException) -> Cause | None:
    """The cause where the class alone tells it: no attributes, and raised from nothing."""
    try:
        if error.__cause__ is not None or error.__dict__:
            return None
        return _by_class_alone(type(error))  # type: ignore[arg-type]  # a class is hashable
    except Exception:
        # What cannot be asked so simply is judged with care.
        return None


@lru_cache(maxsize=512)
def _by_class_alone(cls: type[BaseException]) -> Cause | None:
    """The cause of every exception of this class that has no attributes of its own.

    None where what an instance says may tell another one. Most exceptions are of this kind, and
    asking the class alone costs an eighth.
    """
    if not issubclass(cls, Exception) or issubclass(cls, BaseExceptionGroup):
        return None
    if any(hasattr(cls, name) for name in _FACTS) or hasattr(cls, "__getattr__"):
        return None
    own = {name for base in cls.__mro__ if base is not BaseException for name in vars(base)}
    if {"__dict__", "__cause__"} & own or cls.__getattribute__ is not _GET:
        return None
    names = _known(type_names(cls))
    if any(name in table for table in (_BY_FACTS, WRAPPERS, _BY_DETAIL) for name in names):
        return None
    return next((BY_CLASS[name] for name in names), Cause.POISON)


def classify_status(status: object) -> Cause | None:
    """The cause for an HTTP status, None below 400."""
    if not isinstance(status, int):
        return None
    if status in HTTP:
        return HTTP[status]
    return {4: Cause.POISON, 5: Cause.TRANSIENT}.get(status // 100)


def causes(error: BaseException) -> Iterator[BaseException]:
    """The exception, then what it was explicitly raised from; bounded, safe in cycles."""
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen and len(seen) < _LINKS:
        yield link
        seen.add(id(link))
        link = link.__cause__


def _through(error: BaseException, extra: Extra, seen: set[int]) -> Cause | None:
    found = None
    for link in causes(error):
        # Exceptions may carry each other in circles; each is judged once.
        if id(link) in seen or len(seen) >= _EXCEPTIONS:
            break
        seen.add(id(link))
        if extra and (asked := _asked(type_names(type(link)), extra)) is not None:
            return asked
        cause = _judge(link, extra, seen)
        if cause is not None and cause is not Cause.POISON:
            return cause
        found = found or cause
    return found


@lru_cache(maxsize=512)
def _asked(names: tuple[str, ...], extra: Extra) -> Cause | None:
    wanted = {canonical(name): cause for name, cause in reversed(extra)}
    return next((wanted[name] for name in names if name in wanted), None)


def _judge(error: BaseException, extra: Extra, seen: set[int]) -> Cause | None:
    if isinstance(error, BaseExceptionGroup):
        return _group(error, extra, seen)
    if not isinstance(error, Exception):
        return Cause.FATAL
    cause = classify_sqlstate(_read(error, "sqlstate") or _read(error, "pgcode"))
    cause = cause or classify_status(_read(_read(error, "response"), "status_code"))
    if cause is not None:
        return cause
    names = _known(type_names(type(error)))
    for name in names:
        cause = _ask(_BY_FACTS, name, error) or _carried(error, name, extra, seen)
        if cause is not None:
            return cause
    for name in names:
        cause = _ask(_BY_DETAIL, name, error) or BY_CLASS.get(name)
        if cause is not None:
            return cause
    return None


@lru_cache(maxsize=512)
def _known(names: tuple[str, ...]) -> tuple[str, ...]:
    """Those that a table has: most exceptions have many bases and no rule."""
    tables: tuple[Mapping[str, object], ...] = (_BY_FACTS, WRAPPERS, _BY_DETAIL, BY_CLASS)
    return tuple(name for name in names if any(name in table for table in tables))


def _carried(error: BaseException, name: str, extra: Extra, seen: set[int]) -> Cause | None:
    inner = _read(error, WRAPPERS[name]) if name in WRAPPERS else None
    return _through(inner, extra, seen) if isinstance(inner, BaseException) else None


def _ask(rules: dict[str, _Rule], name: str, error: BaseException) -> Cause | None:
    try:
        return rules[name](error) if name in rules else None
    except Exception:
        # Facts that cannot be read tell nothing; the class still does.
        return None


def _group(error: BaseExceptionGroup[BaseException], extra: Extra, seen: set[int]) -> Cause | None:
    # Trying again helps only if it helps every member.
    members = error.exceptions[:_MEMBERS]
    found = {_through(each, extra, seen) or Cause.POISON for each in members}
    return next(cause for cause in _WORST_FIRST if cause in found)


def _read(thing: Any, name: str) -> Any:
    try:
        return getattr(thing, name, None)
    except Exception:
        # A property that raises tells nothing; the class still does.
        return None


def _status(error: Any) -> Cause | None:
    name = next(name for name in type_names(type(error)) if name in STATUS_OF)
    return classify_status(_read(error, STATUS_OF[name]))


def _aws(error: Any) -> Cause | None:
    response = error.response
    code = str(response.get("Error", {}).get("Code", ""))
    if code in AWS:
        return AWS[code]
    status = int(code) if code.isdecimal() else None
    return classify_status(status or response.get("ResponseMetadata", {}).get("HTTPStatusCode"))


def _kafka(error: Any) -> Cause | None:
    inner: Any = error.args[0] if error.args else None
    if _read(inner, "fatal") is None or inner.fatal():
        return None
    return KAFKA.get(inner.name())


def _sqlite(error: Any) -> Cause | None:
    words = str(_read(error, "sqlite_errorname") or "").split("_")
    return SQLITE.get(words[1]) if len(words) > 1 else None


def _os_error(error: Any) -> Cause | None:
    # The errno of a subclass in the table (gaierror, SSLError) is no errno of the system.
    return ERRNO.get(errno.errorcode.get(error.errno, ""))


def _sink_error(error: Any) -> Cause | None:
    return Cause.PROGRAMMING if error.retriable is False else None


def _produce_error(error: Any) -> Cause | None:
    return Cause.TRANSIENT if error.retriable else Cause.POISON


def _attribute_error(error: Any) -> Cause | None:
    return Cause.PROGRAMMING if isinstance(error.obj, ModuleType) else None


def _syntax_error(error: Any) -> Cause | None:
    # Text that was evaluated is the record's; parsers subclass SyntaxError for theirs.
    evaluated = str(error.filename or "<").startswith("<")
    own = type(error) in {SyntaxError, IndentationError, TabError}
    return Cause.PROGRAMMING if own and not evaluated else Cause.POISON


_BY_FACTS: dict[str, _Rule] = {
    **dict.fromkeys(STATUS_OF, _status),
    "botocore.exceptions.ClientError": _aws,
    "sqlite3.Error": _sqlite,
    "sparkguard.errors.StageFailedError": carried_cause,
    "pyspark.errors.exceptions.base.PySparkException": classify_jvm,
    "py4j.protocol.Py4JJavaError": classify_jvm,
}

_BY_DETAIL: dict[str, _Rule] = {
    "confluent_kafka.KafkaException": _kafka,
    "OSError": _os_error,
    "AttributeError": _attribute_error,
    "SyntaxError": _syntax_error,
    "sparkguard.errors.SinkError": _sink_error,
    "sparkguard.errors.ProduceError": _produce_error,
}
