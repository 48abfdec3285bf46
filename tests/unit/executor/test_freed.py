"""What a batch leaves behind when it has gone through."""

import gc
import weakref
from pathlib import Path

import pyarrow as pa
import pytest

import sparkguard as sg
from sparkguard.executor.flow_pass import run
from sparkguard.executor.plan import Layout, Plan
from sparkguard.steps import steps_of

seen: "weakref.WeakSet[Word]" = weakref.WeakSet()


class Word:
    """An object that tells whether it still lives."""

    def __init__(self, text: str) -> None:
        self.text = text
        seen.add(self)


@sg.deserialize
def read(value: bytes) -> Word:
    """A word, or any other text."""
    return Word(value.decode())


@sg.map
def shout(word: Word) -> str:
    """Louder; one word is bad."""
    if word.text == "bad":
        raise ValueError(word.text)
    return word.text.upper()


@pytest.mark.parametrize("handler", ["dead_letter", "log_and_continue"])
def test_a_failure_keeps_no_batch_alive(tmp_path: Path, handler: str) -> None:
    """A letter that waits in its sink keeps the record, not the batch it came with."""
    guard = sg.Guard(
        sg.Settings(
            state={"path": str(tmp_path / "state")},
            sinks={"default": {"type": "file", "path": str(tmp_path / "dead")}},
            defaults={"handler": handler},
        )
    )
    flow = guard.flow(read, shout, name="words")
    plan = Plan(
        app="app",
        flow="words",
        use="use",
        steps=steps_of(flow.stages, flow.policies),
        layout=Layout(value=0),
        shape=flow.shape,
        sinks=flow.bound.sinks,
    )
    batch = pa.RecordBatch.from_arrays([pa.array([b"good", b"bad", b"good"])], ["value"])
    gc.disable()  # counting references must be enough: a batch is few objects to the collector
    try:
        rows = 0
        for out in run(plan, None, [batch, batch]):
            rows += out.num_rows
            assert not seen
    finally:
        gc.enable()
    assert rows == 4
