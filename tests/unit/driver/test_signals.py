import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sparkguard.driver.state import State
from tests.unit.driver import signalled

PROGRAM = str(Path(signalled.__file__))
SECONDS = 60


class Program:
    """The program, and what it says."""

    def __init__(self, process: subprocess.Popen[str], folder: Path) -> None:
        self.process = process
        self.folder = folder

    def says(self, event: str) -> None:
        """Wait until it has said so."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if event in line:
                return
        pytest.fail(f"it never said {event!r}")

    def ends(self) -> int:
        """Wait for its end; the exit code."""
        return self.process.wait(SECONDS)

    @property
    def result(self) -> str:
        """How its query ended."""
        return (self.folder / "result").read_text()


@contextmanager
def program(folder: Path, script: str) -> Iterator[Program]:
    """Start the program; it is gone afterwards."""
    command = [sys.executable, PROGRAM, str(folder), script]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(command, **pipes) as process:  # type: ignore[call-overload]
        try:
            yield Program(process, folder)
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_a_signal_stops_between_batches(tmp_path: Path, number: signal.Signals) -> None:
    """P14: a signal ends the run between two batches, and the process with 0."""
    with program(tmp_path, "batches") as running:
        running.says("sparkguard.query_started")
        running.process.send_signal(number)
        running.says(f"by='{number.name}'")
        assert running.ends() == 0
    assert running.result == "stops=1 cut=False"
    assert not State(str(tmp_path)).stop_requested()


def test_the_second_signal_forces(tmp_path: Path) -> None:
    """A batch is waited for, until a second signal cuts it off; that too ends with 0."""
    with program(tmp_path, "one long batch") as running:
        running.says("sparkguard.query_started")
        running.process.send_signal(signal.SIGTERM)
        running.says("by='SIGTERM'")
        running.process.send_signal(signal.SIGTERM)
        assert running.ends() == 0
    assert running.result == "stops=1 cut=True"


def test_the_marker_stops_it(tmp_path: Path) -> None:
    """The marker that `sparkguard stop` sets ends another process, between two batches."""
    State(str(tmp_path)).request_stop()
    with program(tmp_path, "batches") as running:
        running.says("sparkguard.query_started")
        State(str(tmp_path)).request_stop()
        running.says("by='the stop marker'")
        assert running.ends() == 0
    assert running.result == "stops=1 cut=False"


def test_the_limit_ends_with_75(tmp_path: Path) -> None:
    """P14: an uncaught limit ends the process with 75 and one sentence, no traceback."""
    with program(tmp_path, "outage") as running:
        assert running.process.stdout is not None
        said = running.process.stdout.read()
        assert running.ends() == 75
    assert "Query 'build' stays down: it was restarted 0 times" in said
    assert "The last cause: the database is away" in said
    assert "Traceback" not in said
