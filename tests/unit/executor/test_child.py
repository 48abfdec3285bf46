"""A forked child: what it answers, how it ends, and that it does not outlive its parent."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from sparkguard.executor.child import Child, Death, Note
from sparkguard.executor.lane import Lane

PATIENCE = 20.0


def serving(answer: Callable[[Any], Any]) -> Callable[[Any, IO[bytes]], None]:
    """What a child runs that answers so."""

    def serve(pipe: Any, _: IO[bytes]) -> None:
        while True:
            pipe.send(answer(pipe.recv()))

    return serve


@pytest.fixture
def child() -> Iterator[Callable[[Callable[[Any], Any]], Child]]:
    """Makes children, and ends them."""
    made: list[Child] = []

    def make(answer: Callable[[Any], Any]) -> Child:
        made.append(Child(serving(answer)))
        return made[-1]

    yield make
    for one in made:
        one.end()


def gone(pid: int) -> bool:
    """Whether a process has ended, within a while."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state in "ZX":
            return True
    return False


def test_it_answers(child: Any) -> None:
    """One question after another, whatever their size, in another process."""
    one = child(lambda text: (os.getpid(), text * 2))
    pids = {one.ask("x" * 1_000_000)[0], one.ask("y")[0]}
    assert len(pids) == 1
    assert os.getpid() not in pids


@pytest.mark.parametrize(
    ("end", "how"),
    [
        (lambda _: os.kill(os.getpid(), signal.SIGSEGV), "was killed by SIGSEGV"),
        (lambda _: os.kill(os.getpid(), signal.SIGRTMIN + 3), "was killed by signal 37"),
        (lambda _: os._exit(0), "exited with code 0"),
        (lambda _: os.closerange(3, 256), "exited with code 1"),
    ],
    ids=["segfault", "real-time signal", "exit", "closed"],
)
def test_it_dies(child: Any, end: Callable[[Any], None], how: str) -> None:
    """Its end is no answer, and says how."""
    died = child(end).ask(1)
    assert isinstance(died, Death)
    assert died.how == how


def test_its_stack(child: Any) -> None:
    """A signal of the kernel leaves the stack of what it met."""

    def inner(_: Any) -> None:
        os.kill(os.getpid(), signal.SIGSEGV)

    assert "in inner" in child(inner).ask(1).stack


def test_a_process_of_its_own_holds_the_pipe(child: Any) -> None:
    """A function may start a process that lives on: the child's end is seen all the same."""

    def leave(_: Any) -> None:
        if os.fork():
            os._exit(5)
        time.sleep(PATIENCE)
        os._exit(0)

    begun = time.monotonic()
    assert child(leave).ask(1).how == "exited with code 5"
    assert time.monotonic() - begun < PATIENCE / 2


def test_it_ends_when_asked(child: Any) -> None:
    """A child that waits for a question ends with the pipe."""
    one = child(lambda _: os.getpid())
    pid = one.ask(1)
    one.end()
    with pytest.raises(ChildProcessError):
        os.waitpid(pid, 0)


@pytest.mark.parametrize("busy", [True, False])
def test_it_dies_with_its_parent(tmp_path: Path, busy: bool) -> None:
    """A worker that is killed leaves no child behind, also none that is at work."""
    program = f"""
import os, sys, time
from sparkguard.executor.child import Child

def answer(question):
    if question:
        open(sys.argv[1] + ".new", "w").write(str(os.getpid()))
        os.rename(sys.argv[1] + ".new", sys.argv[1])
        if {busy}:
            time.sleep(3600)
    return 1

def serve(pipe, _):
    while True:
        pipe.send(answer(pipe.recv()))

Child(serve).ask(True)
time.sleep(3600)
"""
    told = tmp_path / "pid"
    parent = subprocess.Popen([sys.executable, "-c", program, str(told)])
    try:
        until = time.monotonic() + PATIENCE
        while not told.exists():
            assert time.monotonic() < until
    finally:
        parent.kill()
        parent.wait()
    assert gone(int(told.read_text()))


def test_a_note_outlives_its_writer(child: Any) -> None:
    """What a process worked on when it died is known."""
    note = Note()
    lane = Lane(["a", "b", "c"], [4, 7, 9])

    def work(_: Any) -> None:
        for value in note.over(2, lane):
            if value == "b":
                os._exit(1)

    child(work).ask(1)
    assert (note.place, note.row) == (2, 7)


def test_what_is_raised_between_two_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """P6: an alarm, or a timeout that strikes late, takes one record with it and none behind it."""
    note, before = Note(), Note.at

    def at(self: Note, place: int, row: int = -1) -> None:
        before(self, place, row)
        if row == 2:
            raise TimeoutError

    monkeypatch.setattr(Note, "at", at)
    values = note.over(0, Lane(list("abcde"), range(5)))
    out: list[str] = []
    with pytest.raises(TimeoutError):
        out.extend(values)
    out.extend(values)
    assert out == ["a", "b", "d", "e"]
    assert (note.place, note.row) == (0, 4)
