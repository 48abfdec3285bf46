"""What a task writes where Spark has no accumulators."""

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from sparkguard.core.ledger import Entry, Span, Top
from sparkguard.errors import StageFailedError
from sparkguard.executor.entry_folder import EntryFolder

ENTRY = Entry(
    flow="orders",
    spans=(Span(topic="orders", partition=0, first=1, last=2),),
    stages={"decode": {"entered": 2}},
    top=(
        Top(
            stage="decode",
            fingerprint="f",
            cause="poison",
            exception_type="ValueError",
            message="größe",
            coordinates="orders[0]@1",
            count=1,
        ),
    ),
)


def test_files(tmp_path: Path) -> None:
    """Each entry is a file of its own, nothing of it is lost, and names sort by time."""
    folder = EntryFolder(str(tmp_path / "entries"), "owner")
    for attempt in range(3):
        folder.add([replace(ENTRY, attempt=attempt)])
    files = sorted((tmp_path / "entries" / "batch").iterdir())
    found = [msgspec.json.decode(file.read_bytes(), type=Entry) for file in files]
    assert [entry.attempt for entry in found] == [0, 1, 2]
    assert found[0] == ENTRY
    assert all("-owner-" in file.name for file in files)


def test_a_failure_that_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """P1: the failure itself goes on; that the state does not learn of it is said."""
    (tmp_path / "entries").write_text("in the way")
    EntryFolder(str(tmp_path / "entries"), "o").failed("orders", StageFailedError("why", {}))
    assert "does not learn that flow 'orders' failed" in capsys.readouterr().err
