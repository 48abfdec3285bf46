"""Python's own exceptions, the order of judging, and what must never happen."""

import ast
import builtins
import errno
import json
import socket
import sqlite3
import ssl
import xml.etree.ElementTree as ET
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from sparkguard.core.classify import classify
from sparkguard.core.failure import Cause
from sparkguard.core.known import BY_CLASS, ERRNO
from sparkguard.errors import (
    ConfigError,
    SinkError,
    StageFailedError,
    UnknownNameError,
)
from tests.unit.core.named import Response, named

T, P, PROGRAMMING, FATAL = Cause.TRANSIENT, Cause.POISON, Cause.PROGRAMMING, Cause.FATAL


def raised(function: Callable[[], Any]) -> BaseException:
    """What the function raises."""
    try:
        function()
    except BaseException as error:
        return error
    pytest.fail("nothing was raised")


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (ValueError("x"), P),
        (KeyError("x"), P),
        (TypeError("x"), P),
        (AssertionError("x"), P),
        (StopIteration(), P),
        (RecursionError(), P),
        (RuntimeError("x"), P),
        (Exception("x"), P),
        (ZeroDivisionError(), P),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "x"), P),
        (ImportError("x"), PROGRAMMING),
        (ModuleNotFoundError("x"), PROGRAMMING),
        (NameError("x"), PROGRAMMING),
        (UnboundLocalError("x"), PROGRAMMING),
        (NotImplementedError(), PROGRAMMING),
        (MemoryError(), FATAL),
        (SystemExit(3), FATAL),
        (KeyboardInterrupt(), FATAL),
        (GeneratorExit(), FATAL),
        (BaseException(), FATAL),
        (TimeoutError(), T),
        (ConnectionRefusedError(), T),
        (BufferError("Local: Queue full"), T),
        (socket.gaierror(socket.EAI_NONAME, "x"), T),
        (ssl.SSLCertVerificationError(1, "x"), T),
    ],
)
def test_pythons_own(error: BaseException, cause: Cause) -> None:
    """P10, P11: an outage, a bad record, a bug and a dying process are told apart."""
    assert classify(error) is cause


def test_own_base_exception_is_fatal() -> None:
    """P11: every BaseException that is no Exception is fatal."""
    assert classify(named("orders.Abort", BaseException)()) is FATAL


@pytest.mark.parametrize(
    ("number", "cause"),
    [
        *((getattr(errno, name), T) for name in ("ECONNREFUSED", "ETIMEDOUT", "ENETUNREACH")),
        *((getattr(errno, name), T) for name in ("EPIPE", "ECONNRESET", "EAGAIN", "EMFILE")),
        *((getattr(errno, name), T) for name in ("ENOSPC", "EDQUOT", "EIO", "EROFS", "ENFILE")),
        (errno.EACCES, T),
        (errno.EPERM, T),
        (errno.ENOENT, P),
        (errno.EINVAL, P),
        (123456, P),
    ],
)
def test_errno(number: int, cause: Cause) -> None:
    """P9: what the machine or the network lacks is an outage; a missing file is not."""
    assert classify(OSError(number, "x")) is cause


def test_os_error_without_errno() -> None:
    """A bare OSError says nothing, so it is poison."""
    assert classify(OSError("x")) is P
    assert classify(PermissionError("x")) is T
    assert classify(FileNotFoundError("x")) is P


def test_evaluated_text_is_the_record() -> None:
    """A SyntaxError of the record's text is poison, one of a file is a bug."""
    assert classify(raised(lambda: ast.literal_eval("{a"))) is P
    assert classify(raised(lambda: eval("1 +"))) is P
    assert classify(raised(lambda: ET.fromstring("<a>"))) is P
    assert classify(SyntaxError("x", ("/app/orders.py", 3, 1, "def", 3, 2))) is PROGRAMMING
    assert classify(IndentationError("x", ("/app/orders.py", 3, 1, "def", 3, 2))) is PROGRAMMING


def test_attribute_of_a_module_is_a_bug() -> None:
    """P10: a misspelt function of a module is a bug, a value without it is the record."""
    assert classify(raised(lambda: json.laods)) is PROGRAMMING  # type: ignore[attr-defined]
    assert classify(raised(lambda: None.amount)) is P  # type: ignore[attr-defined]
    assert classify(AttributeError("x")) is P


def test_explicit_cause_decides() -> None:
    """P9: what is raised from an outage is an outage, however deep."""

    def lookup() -> None:
        try:
            try:
                raise TimeoutError
            except TimeoutError as error:
                raise ValueError("no price") from error
        except ValueError as error:
            raise RuntimeError("order failed") from error

    assert classify(raised(lookup)) is T


def test_known_class_does_not_look_further() -> None:
    """An exception that is known to be no poison speaks for itself."""
    error = NotImplementedError()
    error.__cause__ = TimeoutError()
    assert classify(error) is PROGRAMMING


@pytest.mark.parametrize("suppress", [False, True])
def test_context_does_not_decide(suppress: bool) -> None:
    """Raised while an outage was handled, but not from it: says nothing about why."""

    def fall_back() -> None:
        try:
            raise TimeoutError
        except TimeoutError:
            if suppress:
                raise ValueError("x") from None
            raise ValueError("x")  # noqa: B904 - this is the case

    assert classify(raised(fall_back)) is P


def test_cycles_end() -> None:
    """Causes in a circle, and exceptions that carry each other, are judged and left."""
    first, second = RuntimeError("a"), RuntimeError("b")
    first.__cause__, second.__cause__ = second, first
    assert classify(first) is P
    wrapper = named("sqlalchemy.exc.StatementError")
    one, two = wrapper(), wrapper()
    one.orig, two.orig = two, one  # type: ignore[attr-defined]
    one.__cause__ = two
    assert classify(one) is P
    two.__cause__ = TimeoutError()
    assert classify(one) is T


def test_endless_chain_ends() -> None:
    """An exception that makes a new cause whenever it is asked does not hang the task."""

    class EndlessError(Exception):
        __module__ = "sqlalchemy.exc"
        __qualname__ = "StatementError"

        @property
        def orig(self) -> Exception:
            return EndlessError()

    assert classify(EndlessError()) is P


@pytest.mark.parametrize(
    ("members", "cause"),
    [
        ([TimeoutError(), ConnectionError()], T),
        ([TimeoutError(), ValueError()], P),
        ([TimeoutError(), ValueError(), NameError()], PROGRAMMING),
        ([NameError(), MemoryError()], FATAL),
        ([ExceptionGroup("inner", [TimeoutError()])], T),
    ],
)
def test_worst_of_a_group(members: list[Exception], cause: Cause) -> None:
    """Trying a group again helps only if it helps all of it."""
    assert classify(ExceptionGroup("x", members)) is cause


def test_settings_win() -> None:
    """`classify:` wins over the table, covers subclasses, the most specific class first."""
    outage = named("orders.Outage")
    closed = named("orders.Closed", outage)
    extra = [("orders.Outage", T), ("orders.Closed", P), ("TimeoutError", P)]
    assert classify(outage(), extra) is T
    assert classify(closed(), extra) is P
    assert classify(named("orders.Late", outage)(), extra) is T
    assert classify(TimeoutError(), extra) is P
    assert classify(KeyError(), extra) is P
    assert classify(KeyError(), [("LookupError", T), ("KeyError", PROGRAMMING)]) is PROGRAMMING
    assert classify(KeyError(), [("builtins.KeyError", T)]) is T
    assert classify(KeyError(), [("KeyError", T), ("KeyError", FATAL)]) is T


def test_settings_reach_explicit_causes() -> None:
    """A class of the settings is found in the explicit chain, and its poison is final."""
    refused = named("orders.Refused")
    error = RuntimeError()
    error.__cause__ = refused()
    error.__cause__.__cause__ = TimeoutError()
    assert classify(error) is T
    assert classify(error, [("orders.Refused", P)]) is P
    assert classify(error, [("orders.Refused", PROGRAMMING)]) is PROGRAMMING


def test_settings_may_tame_a_base_exception() -> None:
    """A library that panics with a BaseException can be made poison in so many words."""
    panic = named("pyo3_runtime.PanicException", BaseException)
    assert classify(panic()) is FATAL
    assert classify(panic(), [("pyo3_runtime.PanicException", P)]) is P


@pytest.mark.parametrize(
    ("status", "cause"),
    [
        *((status, T) for status in (401, 403, 407, 408, 425, 429, 500, 502, 503, 504)),
        *((status, P) for status in (200, 302, 400, 404, 409, 422)),
    ],
)
def test_status_of_any_response(status: int, cause: Cause) -> None:
    """P9: whatever has `response.status_code` is judged by it; rights are an outage."""
    error = named("acme.ApiError")()
    error.response = Response(status)  # type: ignore[attr-defined]
    assert classify(error) is cause


@pytest.mark.parametrize(
    ("state", "cause"),
    [
        *((state, T) for state in ("08006", "53300", "57P01", "58030", "40001", "25006", "55P03")),
        *((state, T) for state in ("28P01", "42501")),
        *((state, PROGRAMMING) for state in ("42703", "0A000")),
        *((state, P) for state in ("22001", "23505", "99999", "", None, 8)),
    ],
)
@pytest.mark.parametrize("attribute", ["sqlstate", "pgcode"])
def test_sqlstate_of_any_driver(attribute: str, state: object, cause: Cause) -> None:
    """P9: whatever has an SQLSTATE is judged by it."""
    error = named("acme.DatabaseError")()
    setattr(error, attribute, state)
    assert classify(error) is cause


def test_sqlite() -> None:
    """One class of sqlite3 is a locked file and a misspelt table; its code tells them apart."""
    with sqlite3.connect(":memory:") as connection:
        connection.execute("create table orders (id integer primary key)")
        connection.execute("insert into orders values (1)")
        twice = raised(lambda: connection.execute("insert into orders values (1)"))
        typo = raised(lambda: connection.execute("select * from odrers"))
    assert classify(twice) is P
    assert classify(typo) is PROGRAMMING
    locked = sqlite3.OperationalError("database is locked")
    locked.sqlite_errorname = "SQLITE_BUSY_SNAPSHOT"
    assert classify(locked) is T
    connection.close()


def test_sparkguards_own() -> None:
    """An unstored letter is an outage, settings are a bug, a failure keeps its cause."""
    assert classify(SinkError("x", sink="topic")) is T
    assert classify(SinkError("x", sink="topic", retriable=False)) is PROGRAMMING
    assert classify(UnknownNameError("sink", "x", [])) is PROGRAMMING
    assert classify(ConfigError("x")) is PROGRAMMING
    for cause in Cause:
        assert classify(StageFailedError("x", {"cause": cause.value})) is cause
    assert classify(StageFailedError("x", {})) is P


class _HostileError(Exception):
    """Raises from everything it can."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)

    def __str__(self) -> str:
        raise RuntimeError

    def __eq__(self, other: object) -> bool:
        raise RuntimeError

    def __hash__(self) -> int:
        raise RuntimeError


def test_never_raises() -> None:
    """An exception class may do anything in its attributes; it is poison then."""
    assert classify(_HostileError()) is P
    assert classify(_HostileError(), [("Exception", T)]) in {T, P}
    broken = named("botocore.exceptions.ClientError", response=SimpleNamespace())
    assert classify(broken()) is P
    late = named("requests.exceptions.Timeout", response=property(lambda self: 1 / 0))
    assert classify(late()) is T


def test_hostile_metaclass() -> None:
    """A class that cannot be hashed is judged all the same."""

    class Meta(type):
        def __hash__(cls) -> int:
            raise RuntimeError

    class OddError(Exception, metaclass=Meta):
        pass

    assert classify(OddError()) is P


BUILTINS = [
    each
    for each in vars(builtins).values()
    if isinstance(each, type) and issubclass(each, BaseException)
]


def test_every_builtin_exception_has_a_cause() -> None:
    """P11: every exception class of Python is judged; the fatal ones are those of the promise."""
    for cls in BUILTINS:
        if not issubclass(cls, BaseExceptionGroup | UnicodeError):
            cause = classify(cls())
            assert (cause is FATAL) == (not issubclass(cls, Exception) or cls is MemoryError)


def test_builtins_of_the_table_exist() -> None:
    """A misspelt name in the table would never match."""
    names = {cls.__name__ for cls in BUILTINS}
    assert {name for name in BY_CLASS if "." not in name} <= names
    assert all(hasattr(errno, name) for name in ERRNO)


class _HiddenError(ConnectionError):
    @property
    def __dict__(self) -> Any:  # type: ignore[override]
        raise RuntimeError


class _NoCauseError(ConnectionError):
    @property
    def __cause__(self) -> Any:  # type: ignore[override]
        raise RuntimeError


class _Meta(type):
    def __getattr__(cls, name: str) -> Any:
        raise RuntimeError


class _OddClassError(ConnectionError, metaclass=_Meta):
    pass


class _EmptyError(ConnectionError):
    __dict__ = {}


@pytest.mark.parametrize("cls", [_HiddenError, _NoCauseError, _OddClassError, _EmptyError])
def test_an_outage_of_an_odd_class(cls: type[Exception]) -> None:
    """P9: a class that hides what it is stays the outage that it is."""
    assert classify(cls("down")) is Cause.TRANSIENT
