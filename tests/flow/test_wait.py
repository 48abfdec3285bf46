"""How a task waits in a worker: in slices, watching Spark's socket and the stop marker."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sparkguard.executor.task import StoppedError, Task

LONG = 60.0


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a connection: the worker's and Spark's."""
    worker, spark = socket.socketpair()
    yield worker, spark
    worker.close()
    spark.close()


def soon(act: Callable[[], object]) -> None:
    """Do something while the test waits."""
    threading.Timer(0.2, act).start()


def stopped(task: Task, match: str) -> float:
    """How many seconds a long wait took until it was ended."""
    began = time.monotonic()
    with pytest.raises(StoppedError, match=match):
        task.wait(LONG)
    return time.monotonic() - began


def test_spark_closes_the_socket(ends: tuple[socket.socket, socket.socket]) -> None:
    """P7: a wait ends within 2 s of the end of the connection."""
    worker, spark = ends
    soon(spark.close)
    assert stopped(Task(socket=worker.fileno()), "closed the worker's socket") < 0.2 + 2


def test_data_that_waits_is_no_end(ends: tuple[socket.socket, socket.socket]) -> None:
    """P7: the next batch may lie in the socket already; only its end counts."""
    worker, spark = ends
    spark.sendall(b"the next batch")
    task = Task(socket=worker.fileno())
    task.wait(0.05)
    assert not task.cancelled()
    spark.close()
    assert task.cancelled()


@pytest.mark.parametrize("connected", [True, False])
def test_the_marker_is_set(
    connected: bool, ends: tuple[socket.socket, socket.socket], tmp_path: Path
) -> None:
    """P7: a wait ends within 2 s of the stop marker, with or without a socket to watch."""
    marker = tmp_path / "stop"
    task = Task(stop_marker=str(marker), socket=ends[0].fileno() if connected else None)
    assert not task.cancelled()
    soon(marker.touch)
    assert stopped(task, "stop marker") < 0.2 + 2
    assert task.cancelled()


def test_a_wait_that_nobody_ends() -> None:
    """P7: it lasts as long as it was told, and a wait of nothing returns at once."""
    began = time.monotonic()
    Task().wait(0)
    assert time.monotonic() - began < 0.2
    Task().wait(0.7)
    assert 0.7 <= time.monotonic() - began < LONG / 2


def test_outside_of_spark() -> None:
    """Without a task context there is a task all the same, with the marker to watch."""
    task = Task.current("/nowhere/stop")
    assert (task.query_id, task.batch_id, task.attempt) == (None, None, 0)
    assert task.stop_marker == "/nowhere/stop"
    assert task.socket is None


def test_a_marker_that_cannot_be_read(capsys: pytest.CaptureFixture[str]) -> None:
    """A state that does not answer asks for nothing."""
    task = Task(stop_marker="nobodyknows://bucket/stop")
    assert not task.cancelled()
    assert "No look for a stop marker" in capsys.readouterr().err
