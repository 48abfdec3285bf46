import pickle
import subprocess
import sys
from collections.abc import Iterable

import pytest

from sparkguard.core.letter import Letter
from sparkguard.errors import SinkError
from sparkguard.sinks.base import Sink, SinkTask
from sparkguard.sinks.memory import MemorySink
from sparkguard.testing import SinkSuite, sample_letters


class TestMemorySink(SinkSuite):
    """The memory sink does what every sink must."""

    def make_sink(self) -> Sink:
        return MemorySink()

    def stored(self, sink: Sink) -> Iterable[Letter]:
        assert isinstance(sink, MemorySink)
        return sink.letters


def test_each_letter_once() -> None:
    """P3: a letter that was stored twice is shown once; `clear` forgets all."""
    sink, letters = MemorySink(), sample_letters()
    for _ in range(2):
        writer = sink.open(SinkTask())
        for letter in letters:
            writer.write(letter)
        writer.flush()
    assert sink.letters == letters
    sink.clear()
    assert sink.letters == []


def test_two_sinks_are_two_lists() -> None:
    """Sinks share letters by name only."""
    first, second = MemorySink(), MemorySink()
    named = MemorySink(store="shared-by-name")
    for sink in (first, named):
        writer = sink.open(SinkTask())
        writer.write(sample_letters()[0])
        writer.flush()
    assert (len(first.letters), len(second.letters)) == (1, 0)
    assert len(MemorySink(store="shared-by-name").letters) == 1


SCRIPT = """
import pickle, sys
from sparkguard.testing import sample_letters
from sparkguard.sinks.base import SinkTask
sink = pickle.loads(sys.stdin.buffer.read())
writer = sink.open(SinkTask())
for letter in sample_letters():
    writer.write(letter)
writer.flush()
assert [one.id for one in pickle.loads(pickle.dumps(sink)).letters] == [
    one.id for one in sample_letters()
]
"""


def test_a_stranger_process() -> None:
    """A process that inherits nothing from this one delivers, and can read what is there."""
    sink = MemorySink()
    subprocess.run([sys.executable, "-c", SCRIPT], input=pickle.dumps(sink), check=True)
    assert sink.letters == sample_letters()


ORPHAN = """
import pickle, sys
from sparkguard.sinks.memory import MemorySink
sys.stdout.buffer.write(pickle.dumps(MemorySink()))
"""


def test_its_process_is_gone() -> None:
    """P2: if the process that keeps the letters has ended, the writer's flush raises."""
    run = subprocess.run([sys.executable, "-c", ORPHAN], check=True, capture_output=True)
    writer = pickle.loads(run.stdout).open(SinkTask(name="dead"))
    writer.write(sample_letters()[0])
    with pytest.raises(SinkError, match="does not answer"):
        writer.flush()
    writer.close()
