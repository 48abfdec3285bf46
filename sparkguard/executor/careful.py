"""Careful mode: the functions run in a child, and the record that ends it is found.

The batch goes to a child whole. One that dies leaves a note of the record that it was at; that one
is tried alone, in a child of its own, and only if it ends that too is it the record's fault. Where
there is no such note, or it named a record that is fine, the rows are halved.

Everything that a pass touches happens in the child, letters and their acknowledgement included;
with its answer come the counts, and the next child is forked from them. So a child that dies has
counted nothing, and what it stored before is stored again under the same ids.
"""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import IO, TYPE_CHECKING, Any

import pyarrow as pa

from sparkguard.core.decide import stage_failed
from sparkguard.core.failure import Category, Cause, Failure
from sparkguard.core.record import Record
from sparkguard.errors import WorkerCrashError
from sparkguard.executor.child import Child, Death, Note
from sparkguard.executor.source import Source
from sparkguard.executor.task import StoppedError

if TYPE_CHECKING:
    from sparkguard.executor.flow_pass import FlowPass

_TRACE = 20_000


class RemoteTrace(Exception):  # noqa: N818 - it is no error, it shows where one came from
    """The traceback of what was raised in the child, as text."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


class Careful:
    """A pass in children; opens no sink and calls no function in this process."""

    def __init__(self, flow_pass: FlowPass) -> None:
        self._pass = flow_pass
        self._note = Note()
        self._child: Child | None = None

    def over(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The output rows of one batch, in parts.

        Raises:
            StageFailedError, StoppedError: the task ends, as it would without the child.
        """
        source = self._pass.begin(batch)
        waiting, trusted = [range(batch.num_rows)], True
        suspect = -1
        while waiting:
            rows = waiting.pop()
            if len(rows) == 1 < batch.num_rows:
                self.close()
            fresh, one = self._child is None, batch.slice(rows.start, len(rows))
            given = self._asked(one)
            if not isinstance(given, Death):
                # A suspect that is fine: the note leads nowhere here.
                trusted = trusted and rows != range(suspect, suspect + 1)
                yield given
            elif len(rows) > 1:
                row = self._note.row if trusted else -1
                suspect = rows.start + row if 0 <= row < len(rows) else -1
                waiting += _split(rows, row)
            elif not fresh:
                waiting.append(rows)
            else:
                yield self._refused(one, given)
        self._pass.finish(source)

    def close(self) -> None:
        """End the child, if there is one."""
        if self._child is not None:
            self._child.end()
            self._child = None

    def _asked(self, batch: pa.RecordBatch, killed: tuple[int, Exception] | None = None) -> Any:
        """The output rows, or how the child died."""
        if self._child is None:
            self._note.at(-1)
            self._child = Child(self._serve)
        answer = self._child.ask((_packed(batch), killed))
        if isinstance(answer, Death):
            self.close()
            if self._pass.work.task.cancelled():
                raise StoppedError("A child of the worker ended while the task was being stopped.")
            return answer
        rows, state, raised = answer
        if raised is not None:
            error, trace = pickle.loads(raised)  # noqa: S301 - from our own child
            raise error from (RemoteTrace(trace) if trace else None)
        self._pass.restore(state)
        return _unpacked(rows)

    def _refused(self, one: pa.RecordBatch, death: Death) -> pa.RecordBatch:
        """What is left of a single record that ends every process: no rows."""
        place, error = self._note.place, WorkerCrashError(death.how)
        for line in death.stack.splitlines():
            error.add_note(line)
        given = self._asked(one, (place, error)) if place >= 0 else death
        if not isinstance(given, Death):
            return given
        plan = self._pass.work.plan
        failure = Failure(
            stage=plan.steps[max(place, 0)].name,
            category=Category.PROCESSING,
            cause=Cause.FATAL,
            exception_types=("sparkguard.errors.WorkerCrashError",),
            message=str(error),
            record=Source(one, plan.layout).record(0) if one.num_rows else Record(),
            app=plan.app,
            flow=plan.flow,
        )
        where = "where its letter is stored" if place >= 0 else "outside of the stages' functions"
        raise stage_failed(failure, "fail", f"the process ended {where}") from error

    # --- in the child -----------------------------------------------------------------------

    def _serve(self, pipe: Connection[Any, Any], last_words: IO[bytes]) -> None:
        try:
            with self._pass.bounded(last_words.fileno(), self._note):
                while True:
                    pipe.send(self._answer(*pipe.recv()))
        except (EOFError, BrokenPipeError):
            # The parent wants no more, or is gone.
            return
        finally:
            self._pass.work.delivery.close()

    def _answer(self, rows: bytes, killed: tuple[int, Exception] | None) -> tuple[Any, ...]:
        try:
            source = Source(_unpacked(rows), self._pass.work.plan.layout)
            made = self._pass.rows(source) if killed is None else self._pass.lost(source, *killed)
            self._note.at(-1)
            self._pass.work.flush()
            return _packed(made), self._pass.state(), None
        except BaseException as error:  # whatever ends a task ends it in the parent
            return None, None, _spelled(error)


def _split(rows: range, suspect: int) -> list[range]:
    """Parts of several rows, the last one first; around the suspect if there is one."""
    if not 0 <= suspect < len(rows):
        middle = len(rows) // 2
        return [rows[middle:], rows[:middle]]
    parts = (rows[suspect + 1 :], rows[suspect : suspect + 1], rows[:suspect])
    return [part for part in parts if part]


def _spelled(error: BaseException) -> bytes:
    """An exception as it travels, with the text of what it was raised from."""
    cause = error.__cause__
    trace = "" if cause is None else "".join(traceback.format_exception(cause))[-_TRACE:]
    try:
        spelled = pickle.dumps((error, trace))
        pickle.loads(spelled)  # noqa: S301 - made a line above
    except Exception:
        # Only a defect raises what cannot travel; its text says enough.
        trace = "".join(traceback.format_exception(error))[-_TRACE:]
        return pickle.dumps((RuntimeError(f"{type(error).__name__}: {error}"), trace))
    return spelled


def _packed(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    packed: bytes = sink.getvalue().to_pybytes()
    return packed


def _unpacked(packed: bytes) -> pa.RecordBatch:
    with pa.ipc.open_stream(packed) as reader:
        return reader.read_next_batch()
