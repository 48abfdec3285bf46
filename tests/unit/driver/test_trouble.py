import base64
import json
from collections.abc import Callable
from typing import Any

import pytest

from sparkguard.core.failure import Cause
from sparkguard.driver import trouble
from sparkguard.errors import SinkError, StageFailedError
from tests.unit.driver.desks import OUTAGE, POISON, as_spark_says_it, stage_failed
from tests.unit.driver.frames import Py4JJavaError, interrupted


class UnprintableError(ValueError):
    def __str__(self) -> str:
        raise SystemExit


@pytest.mark.parametrize(
    "java",
    [
        "java.lang.InterruptedException",
        "java.lang.InterruptedException: sleep interrupted",
        "java.io.InterruptedIOException: Interrupted while waiting",
        "java.nio.channels.ClosedByInterruptException",
        (
            "org.apache.spark.SparkException: Job aborted.\n\tat a.B.c(D.scala:1)\n"
            "Caused by: java.lang.InterruptedException\n\tat java.base/java.lang.Object.wait"
        ),
    ],
)
def test_interrupted(java: str) -> None:
    """P12: an interruption that comes out of the JVM says that the query is being stopped."""
    assert trouble.read(interrupted(java)).stopped


def write() -> None:
    """As user code does that makes another exception of it."""
    try:
        raise interrupted()
    except Py4JJavaError as error:
        raise RuntimeError("could not write") from error


def clean_up() -> None:
    """As user code does that fails while it cleans up."""
    try:
        raise interrupted()
    except Py4JJavaError:
        raise KeyError("no such file")  # noqa: B904 - the point of it


@pytest.mark.parametrize("user_code", [write, clean_up])
def test_interrupted_and_wrapped(user_code: Callable[[], None]) -> None:
    """P12: it says so too when user code has made another exception of it."""
    with pytest.raises((RuntimeError, KeyError)) as caught:
        user_code()
    assert trouble.read(caught.value).stopped


@pytest.mark.parametrize(
    "error",
    [
        ValueError("java.lang.InterruptedException"),
        ValueError("x\n: java.lang.InterruptedException: sleep interrupted"),
        Py4JJavaError("An error occurred\n: java.lang.IllegalStateException: no java.lang.Interr…"),
        Py4JJavaError("An error\n: org.apache.X: 'java.lang.InterruptedException' in a record"),
        KeyboardInterrupt("java.lang.InterruptedException"),
        TimeoutError("java.util.concurrent.TimeoutException"),
    ],
)
def test_not_interrupted(error: BaseException) -> None:
    """A text that merely names the exception, as a record may, is no stop."""
    assert not trouble.read(error).stopped


@pytest.mark.parametrize("action", ["fail", "restart", "stop"])
def test_the_marker(action: str) -> None:
    """P14: what a worker decided is found in the text that comes back, whole."""
    decided = stage_failed(action, "transient")
    met = trouble.read(as_spark_says_it(decided))
    assert met.decided is not None
    assert met.decided.facts == decided.facts
    assert met.cause is Cause.TRANSIENT
    assert met.restartable == (action == "restart")
    assert met.stopped == (action == "stop")


def test_a_stage_failure_itself() -> None:
    """A failure that was decided in this process is taken as it is."""
    decided = stage_failed("restart")
    met = trouble.read(decided)
    assert met.decided is decided
    assert (met.cause, met.restartable) == (Cause.POISON, True)


def test_deep_in_a_long_text() -> None:
    """The marker is found wherever Spark has put it, however long the text is."""
    text = "x" * 300_000 + str(stage_failed("restart")) + "y" * 300_000
    assert trouble.read(RuntimeError(text)).restartable


def marker(facts: Any) -> str:
    """The inside of a marker."""
    return base64.urlsafe_b64encode(json.dumps(facts).encode()).decode()


@pytest.mark.parametrize(
    "text",
    [
        str(stage_failed("restart"))[:-20],
        str(stage_failed("restart"))[:-1],
        "[sparkguard:!!!]",
        f"[sparkguard:{marker([1, 2])}]",
        f"[sparkguard:{marker({'action': 'restart'})}]",
    ],
    ids=["cut short", "without its end", "no base64", "a list", "no sentence"],
)
def test_a_broken_marker(text: str) -> None:
    """A marker that was cut off is none: nothing is restarted because of half of it."""
    met = trouble.read(RuntimeError(text))
    assert met.decided is None
    assert not met.restartable


def test_facts_of_another_version() -> None:
    """A cause that this version does not know is no reason to break; the action stands."""
    met = trouble.read(StageFailedError("s", {"action": "restart", "cause": "cosmic"}))
    assert (met.cause, met.restartable) == (Cause.POISON, True)


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (OUTAGE, Cause.TRANSIENT),
        (POISON, Cause.POISON),
        (NameError("prcie"), Cause.PROGRAMMING),
        (SystemExit(3), Cause.FATAL),
        (KeyboardInterrupt(), Cause.FATAL),
        (SinkError("the disk is full.", sink="default"), Cause.TRANSIENT),
        (SinkError("no such topic.", sink="default", retriable=False), Cause.PROGRAMMING),
        (UnprintableError(), Cause.POISON),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else str(value),
)
def test_python(error: BaseException, cause: Cause) -> None:
    """P9, P10, P11: the cause of a live exception; only an outage is restarted for."""
    met = trouble.read(error)
    assert (met.cause, met.decided, met.stopped) == (cause, None, False)
    assert met.restartable == (cause is Cause.TRANSIENT)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (str(as_spark_says_it(OUTAGE)), Cause.TRANSIENT),
        (str(as_spark_says_it(POISON)), Cause.POISON),
        (str(as_spark_says_it(NameError("x"))), Cause.PROGRAMMING),
        (str(as_spark_says_it(SystemExit(3))), Cause.FATAL),
        ("[STREAM_FAILED] … [CONCURRENT_STREAM_LOG_UPDATE] … SQLSTATE: 40000", Cause.PROGRAMMING),
        ("[STREAM_FAILED] … [CAST_INVALID_INPUT] … SQLSTATE: 22018", Cause.POISON),
        ("Job aborted: ExecutorLostFailure (executor 1 exited)", Cause.TRANSIENT),
        ("something nobody knows", Cause.POISON),
    ],
)
def test_text(text: str, cause: Cause) -> None:
    """P14: a failure that is text only is judged by the conditions and classes in it."""
    met = trouble.read(RuntimeError(text))
    assert met.cause is cause, text
    assert met.restartable == (cause is Cause.TRANSIENT)


def test_classify_of_the_settings() -> None:
    """What the settings say about an exception comes first."""
    extra = (("ValueError", Cause.TRANSIENT),)
    assert trouble.read(POISON, extra).cause is Cause.TRANSIENT


def test_circles() -> None:
    """Exceptions that refer to each other in a circle are read all the same."""
    one, two = interrupted(), ValueError()
    one.__cause__, two.__cause__ = two, one
    assert trouble.read(two).stopped
    alone = ValueError()
    alone.__cause__ = alone
    assert not trouble.read(alone).stopped
