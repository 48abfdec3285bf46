import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from sparkguard.driver.state import State
from sparkguard.driver.stop import Stop, StoppedBatchError
from sparkguard.testing.queries import FakeQuery
from tests.unit.driver.frames import FakeFrame, interrupted


@pytest.fixture
def stop(tmp_path: Path) -> Stop:
    """A stop that nobody has asked for."""
    return Stop(State(str(tmp_path)))


def interrupted_at(stop: Stop, moment: int) -> bool:
    """Wait for a stop, and ask for it as a signal would, at one of the lines that run meanwhile.

    Whether there was such a moment; the wait must have ended by itself.
    """
    seen = 0

    def trace(_: FrameType, event: str, __: Any) -> Any:
        nonlocal seen
        seen += 1
        if seen == moment:
            stop.request("SIGTERM")
        return trace

    def wait() -> None:
        sys.settrace(trace)
        stop.wait(0.01)
        sys.settrace(None)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    thread.join(10)
    assert not thread.is_alive(), f"locked up by a signal at moment {moment}"
    return seen >= moment


def test_safe_in_a_signal_handler(stop: Stop) -> None:
    """A signal may come at any line of the waiting, and never locks it up."""
    moment = 1
    while interrupted_at(stop, moment):
        assert stop.requested
        stop.reset()
        moment += 1
    assert moment > 3


def test_a_wait_ends_with_the_request(stop: Stop) -> None:
    """A request from another thread ends a wait at once, and a force the wait for it."""
    for ask, wait in ((lambda: stop.request("code"), stop.wait), (stop.force, stop.wait_forced)):
        thread = threading.Thread(target=ask)
        thread.start()
        while not wait(60):
            assert stop.requested, "the request may end one wait for the force"
        thread.join()
    assert stop.forced
    assert stop.by == "code"


def test_gate_lets_through(stop: Stop) -> None:
    """Without a stop a batch goes on at once."""
    frame = FakeFrame()
    stop.gate(frame, "q")  # type: ignore[arg-type]
    assert not frame.slept
    assert not stop.holds("q")


def test_gate_holds(stop: Stop) -> None:
    """A held batch waits in the JVM until Spark interrupts it; a batch frame is not held."""
    stop.request("code")
    rounds = iter([None, None, interrupted()])

    def sleep(_: int) -> None:
        assert stop.holds("q")
        if (error := next(rounds)) is not None:
            raise error

    frame = FakeFrame(sleep=sleep)
    with pytest.raises(StoppedBatchError):
        stop.gate(frame, "q")  # type: ignore[arg-type]
    assert len(frame.slept) == 3, "an hour that is over is no reason to begin"
    stop.gate(frame, None)  # type: ignore[arg-type]
    assert len(frame.slept) == 3


def test_pause_in_slices(stop: Stop) -> None:
    """P7: a wait on the driver ends as soon as a stop is asked for."""
    frame = FakeFrame()
    assert not stop.pause(frame, 1.1)  # type: ignore[arg-type]
    assert sum(frame.slept) == 1100

    def ask(_: int) -> None:
        stop.request("code")

    frame = FakeFrame(sleep=ask)
    assert stop.pause(frame, 3600)  # type: ignore[arg-type]
    assert len(frame.slept) == 1
    assert frame.slept[0] <= 500


def test_a_jvm_that_is_gone(stop: Stop) -> None:
    """What is no interrupt stays what it is."""

    def dead(_: int) -> None:
        raise ConnectionRefusedError

    stop.request("code")
    with pytest.raises(ConnectionRefusedError):
        stop.gate(FakeFrame(sleep=dead), "q")  # type: ignore[arg-type]


def test_look(stop: Stop, tmp_path: Path) -> None:
    """The marker is seen; a state that cannot be asked asks for nothing."""
    assert not stop.look()
    State(str(tmp_path)).request_stop()
    assert stop.look()
    assert stop.by == "the stop marker"


def test_a_state_that_does_not_answer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A filesystem that fails while it is asked for the marker stops nothing."""

    class Away(State):
        def stop_requested(self) -> bool:
            raise OSError(110, "timed out")

    assert not Stop(Away(str(tmp_path))).look()


def test_ended(stop: Stop) -> None:
    """Whether a query was stopped is known of the followed ones, if Spark answers."""
    query = FakeQuery()

    class Dead(FakeQuery):
        @property
        def isActive(self) -> bool:  # noqa: N802
            raise interrupted()

    dead = Dead()
    assert stop.ended(query.id) is None
    assert stop.ended(None) is None
    stop.follow(query)
    stop.follow(dead)
    assert stop.ended(query.id) is False
    query.stop()
    assert stop.ended(query.id) is True
    assert stop.ended(dead.id) is None


def test_marker_of_our_own(stop: Stop, tmp_path: Path) -> None:
    """What was set for our own workers is removed in the end; what somebody else set is not."""
    state = State(str(tmp_path))
    stop.request("SIGTERM")
    stop.tell_workers()
    assert state.stop_requested()
    stop.finish()
    assert not state.stop_requested()
    assert not stop.requested
    state.request_stop()
    stop.tell_workers()
    stop.finish()
    assert state.stop_requested()
    stop.reset()
    assert not state.stop_requested()
