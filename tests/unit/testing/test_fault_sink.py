import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from sparkguard.core.letter import Letter
from sparkguard.errors import SinkError
from sparkguard.sinks.base import Sink, SinkTask
from sparkguard.sinks.memory import MemorySink
from sparkguard.testing import FaultSink, SinkSuite, sample_letters
from sparkguard.testing.fault_sink import Action, Point


def _sink(tmp_path: Path, point: Point, action: Action = "raise", **more: object) -> FaultSink:
    return FaultSink(
        inner=MemorySink(),
        marker=str(tmp_path / "struck"),
        point=point,
        action=action,
        **more,  # type: ignore[arg-type]
    )


def _stored(sink: FaultSink) -> list[Letter]:
    assert isinstance(sink.inner, MemorySink)
    return sink.inner.letters


def _deliver(sink: Sink) -> None:
    writer = sink.open(SinkTask())
    for letter in sample_letters():
        writer.write(letter)
    writer.flush()


class TestFaultSink(SinkSuite):
    """A fault sink that is told nothing behaves as the sink inside it."""

    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path) -> None:
        self.path = tmp_path

    def make_sink(self) -> Sink:
        return _sink(self.path, "write", nth=1_000_000)

    def stored(self, sink: Sink) -> Iterable[Letter]:
        assert isinstance(sink, FaultSink)
        return _stored(sink)


@pytest.mark.parametrize(
    ("point", "stored"), [("write", 0), ("before_flush", 0), ("after_flush", 7)]
)
def test_raises_once(tmp_path: Path, point: Point, stored: int) -> None:
    """It fails at its point, and what is tried again goes through."""
    sink = _sink(tmp_path, point)
    with pytest.raises(SinkError, match=point):
        _deliver(sink)
    assert sink.struck
    assert len(_stored(sink)) == stored
    _deliver(pickle.loads(pickle.dumps(sink)))
    assert _stored(sink) == sample_letters()


def test_the_nth_time(tmp_path: Path) -> None:
    """It counts how often a writer comes to the point; a flush of nothing does not count."""
    sink = _sink(tmp_path, "before_flush", nth=2)
    writer = sink.open(SinkTask())
    writer.flush()
    writer.write(sample_letters()[0])
    writer.flush()
    writer.flush()
    assert not sink.struck
    writer.write(sample_letters()[1])
    with pytest.raises(SinkError):
        writer.flush()


WORKER = """
import pickle, sys
from sparkguard.sinks.base import SinkTask
from sparkguard.testing import sample_letters
sink = pickle.loads(sys.stdin.buffer.read())
writer = sink.open(SinkTask())
for letter in sample_letters():
    writer.write(letter)
writer.flush()
print("flushed")
"""


def _worker(sink: FaultSink) -> "subprocess.CompletedProcess[bytes]":
    command = [sys.executable, "-c", WORKER]
    return subprocess.run(command, input=pickle.dumps(sink), capture_output=True, check=False)


@pytest.mark.parametrize(("point", "stored"), [("before_flush", 0), ("after_flush", 7)])
def test_kills_the_worker(tmp_path: Path, point: Point, stored: int) -> None:
    """P1: SIGKILL before or behind the acknowledgement; the second worker gets through."""
    sink = _sink(tmp_path, point, "kill")
    run = _worker(sink)
    assert (run.returncode, run.stdout) == (-signal.SIGKILL, b"")
    assert len(_stored(sink)) == stored
    assert _worker(sink).stdout == b"flushed\n"
    assert _stored(sink) == sample_letters()


def test_kills_others(tmp_path: Path) -> None:
    """P1: the processes in the file are gone before the worker goes on."""
    sleepers = [subprocess.Popen(["sleep", "600"]) for _ in range(2)]
    pids = tmp_path / "pids"
    pids.write_text("".join(f"{sleeper.pid}\n" for sleeper in sleepers))
    _deliver(_sink(tmp_path, "after_flush", "kill", pid_file=str(pids)))
    for sleeper in sleepers:
        assert os.waitpid(sleeper.pid, os.WNOHANG)[1] == signal.SIGKILL
        sleeper.returncode = -signal.SIGKILL


def test_delegates(tmp_path: Path) -> None:
    """What the inner sink checks and refuses stays in force."""
    sink = _sink(tmp_path, "write")
    sink.check("dead", frozenset())
    assert sink.refuses(sample_letters()[0]) is None
