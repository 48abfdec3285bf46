"""The end of a task: acknowledgement, count, evaluations that end early, and ids by content."""

from typing import Any

import msgspec
import pyarrow as pa
import pytest

import sparkguard as sg
from sparkguard.core.ledger import Entry
from sparkguard.executor import flow_pass
from sparkguard.executor.plan import Layout
from sparkguard.sinks.memory import MemorySink
from tests.flow.made import ListSink, ManualTask, plan, records, run


class Order(msgspec.Struct):
    id: int


decode = sg.deserialize(sg.Json(Order), name="decode")
LINES = pa.schema([pa.field("value", pa.binary()), pa.field("file", pa.string())])
IN_FILES = Layout(value=0, file=1, rows=2)


def lines(*values: bytes, file: str = "in/a.json") -> pa.RecordBatch:
    """Records of a file: no key, no offset."""
    return pa.RecordBatch.from_pylist([{"value": v, "file": file} for v in values], schema=LINES)


def test_the_acknowledgement_comes_before_the_count() -> None:
    """P2: when a task counts itself, its letters are stored."""
    sink = ListSink()
    seen: list[int] = []
    made = plan(decode, sinks={"default": sink})

    def count(entry: Entry) -> None:
        seen.append(len(sink.stored))

    list(flow_pass.run(made, count, [records([b"{", b'{"id": 1}', b"x"])], ManualTask()))

    assert seen == [2]


@pytest.mark.parametrize("retriable", [True, False])
def test_a_sink_that_refuses_fails_the_task(retriable: bool) -> None:
    """P2: letters that cannot be stored are never a reason to go on; nothing is counted."""
    sink = ListSink(fails=True, retriable=retriable)
    made = plan(decode, sinks={"default": sink})
    entries: list[Entry] = []

    with pytest.raises(sg.StageFailedError, match="could not store its letters") as raised:
        list(flow_pass.run(made, entries.append, [records([b"{"])], ManualTask()))

    assert raised.value.action == ("restart" if retriable else "fail")
    assert raised.value.facts["cause"] == ("transient" if retriable else "poison")
    assert not entries


def test_no_letters_no_sink() -> None:
    """A task without failures touches no sink."""
    sink = ListSink(fails=True)

    ran = run(plan(decode, sinks={"default": sink}), records([b'{"id": 1}']))

    assert ran.rows == [{"id": 1}]


def test_an_evaluation_that_ends_early_is_not_counted() -> None:
    """P11: after `first()` the letters so far are stored, and nothing stands for the batch."""
    sink, entries = ListSink(), list[Entry]()
    made = plan(decode, sinks={"default": sink})
    batches = [records([b"{", b'{"id": 1}']), records([b"x", b'{"id": 3}'], first=2)]
    passing = flow_pass.run(made, entries.append, batches, ManualTask())

    next(passing)
    passing.close()  # type: ignore[attr-defined]

    assert [letter.record.offset for letter in sink.stored] == [0]
    assert not entries


def test_a_sink_that_refuses_an_early_end(capfd: pytest.CaptureFixture[str]) -> None:
    """P11: letters of a partial evaluation are delivered as best can be; it says what was lost."""
    made = plan(decode, sinks={"default": ListSink(fails=True)})
    passing = flow_pass.run(made, None, [records([b"{"]), records([b"{"])], ManualTask())

    next(passing)
    passing.close()  # type: ignore[attr-defined]

    assert "ended early lost letters" in capfd.readouterr().err


def test_an_empty_task_counts_nothing_and_no_rows() -> None:
    """A partition without batches has an entry of its own, with no records."""
    ran = run(plan(decode))

    assert ran.rows == []
    assert ran.account.records_in == 0
    assert ran.account.balanced


def test_ids_do_not_depend_on_batches_or_attempts() -> None:
    """P3: the same records make the same ids, whatever the Arrow batches and the attempt."""
    values = [b"{", b'{"id": 1}', b"[", b""]

    def ids(*batches: pa.RecordBatch, **task: Any) -> set[str]:
        made = plan(decode, sinks={"default": ListSink()})
        return {letter.id for letter in run(made, *batches, task=ManualTask(**task)).letters}

    whole = ids(records(values))
    parts = ids(records(values[:1]), records(values[1:], first=1), attempt=3, stage_id=9)
    elsewhere = ids(records(values, partition=1))

    assert len(whole) == 3
    assert whole == parts
    assert not whole & elsewhere


def test_equal_lines_of_a_file_are_letters_of_their_own() -> None:
    """P3: without coordinates the n-th equal record has its own id, always the same."""
    batch = lines(b"{", b"{", b'{"id": 1}', b"{")

    def letters() -> list[Any]:
        made = plan(decode, sinks={"default": ListSink()}, layout=IN_FILES)
        return run(made, batch, lines(b"{", file="in/b.json")).letters

    first, second = letters(), letters()
    assert len({letter.id for letter in first}) == 4
    assert [letter.id for letter in first] == [letter.id for letter in second]
    assert [letter.record.file for letter in first] == ["in/a.json"] * 3 + ["in/b.json"]


def test_a_record_of_its_own_sink_is_refused() -> None:
    """P16: a record whose topic is the dead-letter topic fails the task before anything is sent."""
    sink = ListSink(refusal="The record was read from this sink's own topic.")

    with pytest.raises(sg.StageFailedError, match="own topic") as raised:
        run(plan(decode, sinks={"default": sink}), records([b"{"]))

    assert raised.value.action == "fail"
    assert not sink.written


def test_the_memory_sink_keeps_each_letter_once() -> None:
    """P3: two evaluations of one task leave one letter a record."""
    sink = MemorySink()
    made = plan(decode, sinks={"default": sink})
    for _ in range(2):
        list(flow_pass.run(made, None, [records([b"{", b'{"id": 1}', b"["])], ManualTask()))

    assert sorted(letter.record.offset or 0 for letter in sink.letters) == [0, 2]
