"""What comes out of the JVM: error conditions, SQLSTATEs, causes of causes, and text."""

from __future__ import annotations

import json
import zipfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyspark
import pytest
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors.error_classes import ERROR_CLASSES_JSON
from pyspark.errors.exceptions import base, captured

from sparkguard.core.classify import classify
from sparkguard.core.failure import Cause
from sparkguard.core.jvm import classify_text
from sparkguard.core.known import CONDITIONS
from sparkguard.errors import StageFailedError
from tests.unit.core.named import named

T, P, PROGRAMMING, FATAL = Cause.TRANSIENT, Cause.POISON, Cause.PROGRAMMING, Cause.FATAL


class Throwable:
    """A Java exception as py4j shows it: a method that it lacks raises."""

    def __init__(self, java: str, **answers: str) -> None:
        self.java = java
        self.cause: Throwable | None = None
        self.answers = answers

    def __getattr__(self, name: str) -> Any:
        def missing() -> str:
            if name not in self.answers:
                message = f"Method {name}([]) does not exist"
                raise Py4JError(message)
            return self.answers[name]

        return missing

    def getCause(self) -> Throwable | None:  # noqa: N802 - Java's name
        return self.cause

    def getClass(self) -> Throwable:  # noqa: N802 - Java's name
        return Throwable(self.java, getName=self.java)


class _JavaError(Py4JJavaError):  # type: ignore[misc]
    """The real class, whose constructor wants a gateway."""

    def __init__(self, throwable: Throwable) -> None:
        self.java_exception = throwable

    def __str__(self) -> str:
        return "An error occurred while calling o1.save."


def java(*chain: Throwable) -> Py4JJavaError:
    """A Py4JJavaError over throwables, the outermost first."""
    for outer, inner in pairwise(chain):
        outer.cause = inner
    chain[-1].cause = None
    return _JavaError(chain[0])


@pytest.mark.parametrize(
    ("condition", "state", "cause"),
    [
        ("CAST_INVALID_INPUT", "22018", P),
        ("DIVIDE_BY_ZERO", "22012", P),
        ("UNRESOLVED_COLUMN.WITH_SUGGESTION", "42703", PROGRAMMING),
        ("TABLE_OR_VIEW_NOT_FOUND", "42P01", PROGRAMMING),
        ("CONCURRENT_STREAM_LOG_UPDATE", "40000", PROGRAMMING),
        ("CANNOT_LOAD_STATE_STORE.UNCATEGORIZED", "58030", T),
        ("CANNOT_LOAD_STATE_STORE.KEY_ROW_FORMAT_VALIDATION_FAILURE", "58030", PROGRAMMING),
        ("KAFKA_DATA_LOSS.PARTITIONS_DELETED", "22000", PROGRAMMING),
        ("LOST_TOPIC_PARTITIONS_IN_END_OFFSET_WITH_TRIGGER_AVAILABLENOW", None, T),
        ("UNABLE_TO_ACQUIRE_MEMORY", "53200", FATAL),
        ("SPARK_JOB_CANCELLED", "XXKDA", T),
        ("STREAM_FAILED", "XXKST", P),
        (None, None, P),
    ],
)
def test_conditions(condition: str | None, state: str | None, cause: Cause) -> None:
    """By Spark's condition, whole or its main part, else by its SQLSTATE."""
    answers = {"getCondition": condition, "getSqlState": state}
    spark = Throwable("org.apache.spark.SparkException", **{k: v for k, v in answers.items() if v})
    assert classify(java(spark)) is cause
    error = base.SparkRuntimeException("x", errorClass=condition)
    error.getSqlState = lambda: state  # type: ignore[method-assign]
    assert classify(error) is cause


def test_deepest_sqlstate() -> None:
    """A Py4JJavaError is judged by its deepest SQLSTATE, Spark's or JDBC's."""
    outer = Throwable("org.apache.spark.SparkException", getSqlState="42000")
    refused = Throwable("org.postgresql.util.PSQLException", getSQLState="08001")
    assert classify(java(outer, Throwable("java.lang.RuntimeException"), refused)) is T
    assert classify(java(outer)) is PROGRAMMING
    cast = Throwable("org.apache.spark.SparkNumberFormatException", getSqlState="22018")
    assert classify(java(cast, Throwable("java.net.SocketException"))) is P


def test_where_it_surfaced_is_not_why() -> None:
    """TASK_WRITE_FAILED has the SQLSTATE of an outage, whatever failed the task."""
    answers = {"getCondition": "TASK_WRITE_FAILED", "getSqlState": "58030"}
    surfaced = Throwable("org.apache.spark.SparkException", **answers)
    assert classify(java(surfaced)) is P
    assert classify(java(surfaced, Throwable("java.io.IOException"))) is T
    assert classify_text("[TASK_WRITE_FAILED] Task failed. SQLSTATE: 58030") is None


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("java.net.ConnectException", T),
        ("org.apache.kafka.common.errors.TimeoutException", T),
        ("org.apache.kafka.common.errors.TopicAuthorizationException", T),
        ("org.apache.kafka.common.errors.RecordTooLargeException", P),
        ("java.lang.OutOfMemoryError", FATAL),
        ("java.lang.ClassNotFoundException", PROGRAMMING),
        ("java.io.FileNotFoundException", P),
    ],
)
def test_java_classes(name: str, cause: Cause) -> None:
    """P9: Java's own outages are known by class, where no SQLSTATE says more."""
    assert classify(java(Throwable("java.lang.RuntimeException"), Throwable(name))) is cause


def test_a_killed_worker_is_fatal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that died may be met as a reset connection, which is not what happened."""
    error = java(
        Throwable("org.apache.spark.SparkException"), Throwable("java.net.SocketException")
    )
    assert classify(error) is T
    said = "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)"
    monkeypatch.setattr(_JavaError, "__str__", lambda _: said)
    assert classify(error) is FATAL


def test_java_causes_in_a_circle() -> None:
    """A throwable that is its own cause ends the walk."""
    odd = Throwable("java.lang.RuntimeException")
    error = java(odd)
    odd.cause = odd
    assert classify(error) is P


def test_captured_causes() -> None:
    """Captured exceptions keep their Java causes in a private attribute."""
    # Without their constructors, which ask the JVM for its settings.
    outer = captured.StreamingQueryException.__new__(captured.StreamingQueryException)
    inner = captured.UnknownException.__new__(captured.UnknownException)
    deep = base.SparkRuntimeException("x", errorClass="CANNOT_WRITE_STATE_STORE")
    deep.getSqlState = lambda: "58030"  # type: ignore[method-assign]
    outer._cause, inner._cause = inner, deep  # type: ignore[assignment]
    assert classify(outer) is T


def test_class_of_a_dead_gateway() -> None:
    """Where the JVM answers no more, the class still tells."""
    analysis = named(
        "pyspark.errors.exceptions.base.AnalysisException",
        named("pyspark.errors.exceptions.base.PySparkException"),
        __str__=lambda self: 1 / 0,
    )
    assert classify(analysis()) is PROGRAMMING


def test_conditions_exist() -> None:
    """A misspelt condition in the table would never match; the Kafka connector has its own list."""
    jar = next(Path(pyspark.__file__).parent.glob("jars/spark-common-utils_*.jar"))
    with zipfile.ZipFile(jar) as archive:
        spark = json.loads(archive.read("error/error-conditions.json"))
    known = {*spark, *json.loads(ERROR_CLASSES_JSON)}
    for name in CONDITIONS:
        head, _, tail = name.partition(".")
        assert head in known or "TOPIC_PARTITION" in head or head.startswith("KAFKA_"), name
        assert not tail or tail in spark[head]["subClass"], name


WORKER = """Job aborted due to stage failure: Task 0 in stage 1.0 failed 4 times, most recent
failure: Lost task 0.3 in stage 1.0: org.apache.spark.api.python.PythonException: Traceback (most \
recent call last):
  File "/app/orders.py", line 12, in price
    return ask(order)
{raised}

\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(x.scala:1)
Driver stacktrace:
"""


@pytest.mark.parametrize(
    ("raised", "cause"),
    [
        ("TimeoutError: timed out", T),
        ("requests.exceptions.Timeout: read timed out", T),
        ("requests.exceptions.ReadTimeout: read timed out", T),
        ("httpx.ConnectTimeout: timed out", T),
        ("psycopg.OperationalError: connection failed", T),
        ('cimpl.KafkaException: KafkaError{code=_TIMED_OUT,val=-185,str="x"}', T),
        ('cimpl.KafkaException: KafkaError{code=MSG_SIZE_TOO_LARGE,val=10,str="x"}', P),
        ("botocore.exceptions.ClientError: An error occurred (AccessDenied) when calling x", T),
        ("botocore.exceptions.ClientError: An error occurred (NoSuchKey) when calling x", None),
        ("ConnectionRefusedError: [Errno 111] Connection refused", T),
        ("OSError: [Errno 28] No space left on device", T),
        ("OSError: [Errno 2] No such file", P),
        ("ModuleNotFoundError: No module named 'orders'", PROGRAMMING),
        ("SystemExit: 3", FATAL),
        ("MemoryError", FATAL),
        ("FileNotFoundError: x", P),
        ("ValueError: x", None),
        ("orders.Refused: TimeoutError: x", None),
    ],
)
def test_workers_traceback(raised: str, cause: Cause | None) -> None:
    """P9, P10: what a worker raised is known by the name that its traceback ends with."""
    assert classify_text(WORKER.format(raised=raised)) is cause


def test_workers_chained_traceback() -> None:
    """Of a chain in text, too, only the explicit form counts."""
    first = "TimeoutError: x\n\n{}\n\nTraceback (most recent call last):\norders.Refused: y"
    direct = "The above exception was the direct cause of the following exception:"
    during = "During handling of the above exception, another exception occurred:"
    assert classify_text(WORKER.format(raised=first.format(direct))) is T
    assert classify_text(WORKER.format(raised=first.format(during))) is None


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("", None),
        ("TimeoutError: no traceback above", None),
        ("[STREAM_FAILED] Query x: [CAST_INVALID_INPUT] The value. SQLSTATE: 22018", P),
        ("[STREAM_FAILED] x: [CANNOT_LOAD_STATE_STORE.UNCATEGORIZED] y SQLSTATE: 58030", T),
        ("[CONCURRENT_STREAM_LOG_UPDATE] Concurrent update. SQLSTATE: 40000", PROGRAMMING),
        ("[DIVIDE_BY_ZERO] a [X_Y] b SQLSTATE: XXKST SQLSTATE: 22012", None),
        ("ERROR: duplicate key SQLSTATE: 23505", P),
        ("[A] [Errno 5] [nothing]", None),
        ("SparkException: Python worker exited unexpectedly (crashed)", FATAL),
        ("Python worker process terminated due to idle timeout (timeout: 2 seconds)", T),
        ("ExecutorLostFailure (executor 1 exited) Reason: Remote RPC client disassociated", T),
        ("Caused by: java.net.ConnectException: Connection refused", T),
        ("Caused by: java.lang.IllegalStateException: x", None),
        ("java.lang.InterruptedException", None),
    ],
)
def test_text(text: str, cause: Cause | None) -> None:
    """Conditions, SQLSTATEs, phrases and Java classes; a stop (P12) is none of its business."""
    assert classify_text(text) is cause


@pytest.mark.parametrize("cause", list(Cause))
def test_text_with_a_marker(cause: Cause) -> None:
    """A failure that we raised in a worker keeps its cause through text."""
    ours = StageFailedError("Stage 'price' failed.", {"cause": cause.value})
    text = WORKER.format(raised=f"sparkguard.errors.StageFailedError: {ours}\nMemoryError")
    assert classify_text(text) is cause
