"""What changes letters at rest: marks of what is resolved, and compaction."""

import subprocess
import sys
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from sparkguard.core.letter import Letter
from sparkguard.deadletters.compact import compact
from sparkguard.deadletters.selection import Selection
from sparkguard.deadletters.store import Store
from sparkguard.errors import LettersError
from sparkguard.sinks.base import Sink, SinkTask
from sparkguard.sinks.file import FileSink
from sparkguard.sinks.memory import MemorySink
from sparkguard.testing import sample_letters

OPEN = Selection(unresolved=True)
WHEN = datetime(2024, 2, 29, tzinfo=UTC)


def _letter(number: int, fingerprint: str = "f", hours: int = 0) -> Letter:
    model = sample_letters()[0]
    failure = replace(
        model.failure, fingerprint=fingerprint, last_failed_at=WHEN + timedelta(hours=hours)
    )
    return replace(model, id=f"{number:032x}", failure=failure)


def _write(path: Path | str, letters: Iterable[Letter]) -> None:
    writer = FileSink(path=str(path)).open(SinkTask(app="a"))
    for letter in letters:
        writer.write(letter)
    writer.flush()


def _store(path: Path | str) -> Store:
    return Store({"files": FileSink(path=str(path))})


def _stored(path: Path | str) -> dict[str, Letter]:
    with _store(path) as store:
        return {letter.id: letter for letter in store.letters()}


def _ids(path: Path, selection: Selection) -> list[str]:
    with _store(path) as store:
        return sorted(letter.id for letter in store.letters(selection))


def test_resolve(tmp_path: Path) -> None:
    """A marked letter is left out where it is asked for, a later one of the same failure is not."""
    _write(tmp_path, [_letter(1), _letter(2, "g")])
    with _store(tmp_path) as store:
        assert store.resolve(Selection(fingerprints=("f",)), "it's fixed", "me") == 1
    _write(tmp_path, [_letter(1), _letter(3)])
    with _store(tmp_path) as store:
        assert [group.count for group in store.groups(OPEN)] == [1, 1]
        assert {row["id"]: row["resolved"] for row in store.rows()} == {
            _letter(1).id: "it's fixed",
            _letter(2).id: None,
            _letter(3).id: None,
        }
        assert store.resolve(Selection(ids=(_letter(1).id,)), "again") == 0
        assert store.resolve(Selection(), "all") == 2
    assert _ids(tmp_path, OPEN) == []
    assert len(_ids(tmp_path, Selection())) == 3
    assert [one for one in tmp_path.rglob("_resolved/*") if one.suffix == ".parquet"] == []


def test_resolve_where_nothing_can_be_written(tmp_path: Path) -> None:
    """Letters that lie in no folder are refused before anything is marked."""
    memory = MemorySink()
    writer = memory.open(SinkTask())
    writer.write(_letter(1))
    writer.flush()
    _write(tmp_path, [_letter(2)])
    sinks: dict[str, Sink] = {"memory": memory, "files": FileSink(path=str(tmp_path))}
    with Store(sinks) as store, pytest.raises(LettersError, match="'memory' cannot be marked"):
        store.resolve(Selection(), "all")
    assert _ids(tmp_path, OPEN) == [_letter(2).id]


def test_corrupt_marks(tmp_path: Path) -> None:
    """Marks that cannot be read are named, and hide nothing."""
    _write(tmp_path, [_letter(1)])
    (tmp_path / "_resolved").mkdir()
    (tmp_path / "_resolved/a.resolved").write_bytes(b"half")
    with _store(tmp_path) as store:
        assert len(store.groups(OPEN)) == 1
        assert [Path(one.place).name for one in store.skipped] == ["a.resolved"]


@pytest.mark.parametrize("scheme", ["", "memory://compact-"])
def test_compact(tmp_path: Path, scheme: str) -> None:
    """P3: the same letters in fewer files, byte for byte, and nothing to do the second time."""
    path = f"{scheme}{tmp_path.name}" if scheme else str(tmp_path)
    letters = [*sample_letters(), *(_letter(at) for at in range(5))]
    for at in range(0, len(letters), 2):
        _write(path, letters[at : at + 2])
    _write(path, [_letter(1, hours=1), letters[0]])
    before = _stored(path)
    done = compact(FileSink(path=path))
    assert (done.before, done.after, done.copies) == (7, 1, 2)
    assert done.letters == len(letters)
    assert _stored(path) == before
    again = compact(FileSink(path=path))
    assert (again.before, again.after, again.letters) == (1, 1, 0)


def test_compact_keeps_folders(tmp_path: Path) -> None:
    """Letters stay in the folder of their day; a folder of nothing but second copies goes empty."""
    for day, letters in (
        ("date=1", [_letter(1), _letter(2)]),
        ("date=2", [_letter(1, hours=2)]),
        ("date=3", [_letter(3)]),
        ("date=4", [_letter(3, hours=2)]),
    ):
        _write(tmp_path / "w", letters)
        (file,) = (tmp_path / "w").rglob("*.parquet")
        (tmp_path / day).mkdir()
        file.rename(tmp_path / day / file.name)
    done = compact(FileSink(path=str(tmp_path)))
    assert (done.before, done.after) == (4, 3)
    found = {one.parent.name for one in tmp_path.rglob("*.parquet")}
    assert found == {"date=1", "date=2", "date=4"}
    assert len(_stored(tmp_path)) == 3


def test_compact_leaves_what_it_cannot_read(tmp_path: Path) -> None:
    """A corrupt file stays, and no letter is dropped for a better copy within one."""
    for _ in range(2):
        _write(tmp_path, [_letter(1)])
    _write(tmp_path, [_letter(2), _letter(1, hours=9)])
    bad = max(tmp_path.rglob("*.parquet"), key=lambda one: one.stat().st_size)
    content = bytearray(bad.read_bytes())
    content[4:1500] = b"\xff" * 1496
    bad.write_bytes(content)
    done = compact(FileSink(path=str(tmp_path)))
    assert [one.place for one in done.skipped] == [str(bad)]
    assert bad.exists()
    assert [*_stored(tmp_path)] == [_letter(1).id]


KILLED = """
import os, signal, sys
from sparkguard import filesystem
from sparkguard.deadletters.compact import compact
from sparkguard.sinks.file import FileSink

left = int(sys.argv[2])

def watched(step):
    def call(*args):
        global left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return step(*args)
    return call

filesystem.upload, filesystem.delete = map(watched, (filesystem.upload, filesystem.delete))
compact(FileSink(path=sys.argv[1]))
"""


@pytest.mark.parametrize("steps", [0, 1, 2, 3])
def test_compact_killed(tmp_path: Path, steps: int) -> None:
    """Killed before or between its steps, it has lost nothing, and the next one ends the work."""
    for at in range(3):
        _write(tmp_path, [_letter(at), _letter(9, hours=at)])
    before = _stored(tmp_path)
    command = [sys.executable, "-c", KILLED, str(tmp_path), str(steps)]
    done = subprocess.run(command, timeout=60, check=False)
    assert done.returncode == -9
    assert _stored(tmp_path) == before
    assert compact(FileSink(path=str(tmp_path))).after == 1
    assert _stored(tmp_path) == before


@pytest.mark.parametrize("name", ["run[1]", "run?", "run*"])
def test_compact_of_a_name_like_a_pattern(tmp_path: Path, name: str) -> None:
    """P3: a folder's name is no pattern: its letters stay, and those of `run1` are not taken."""
    for folder, first in ((name, 1), ("run1", 3)):
        (tmp_path / folder).mkdir()
        for number in (first, first + 1):
            _write(tmp_path / "w", [_letter(number)])
            (file,) = (tmp_path / "w").rglob("*.parquet")
            file.rename(tmp_path / folder / f"{number - first}.parquet")
    assert compact(FileSink(path=str(tmp_path / name))).letters == 2
    assert sorted(_stored(tmp_path / name)) == [_letter(1).id, _letter(2).id]
    assert len(_stored(tmp_path)) == 4


def test_compact_through_a_link(tmp_path: Path) -> None:
    """P3: a file with two names is one file, and no second copy of itself."""
    _write(tmp_path / "day", [_letter(1)])
    _write(tmp_path / "day", [_letter(2)])
    (tmp_path / "latest").symlink_to("day")
    assert compact(FileSink(path=str(tmp_path))).copies == 0
    assert len(_stored(tmp_path)) == 2


def test_compact_beside_a_reader(tmp_path: Path) -> None:
    """P3: whoever reads meanwhile looks again, and misses nothing."""
    for number in range(4):
        _write(tmp_path, [_letter(number)])
    with _store(tmp_path) as store:
        assert store.groups()[0].count == 4
        compact(FileSink(path=str(tmp_path)))
        _write(tmp_path, [_letter(4)])
        assert store.groups()[0].count == 5
        assert store.skipped == ()
    with _store(tmp_path) as unused:
        compact(FileSink(path=str(tmp_path)))
        assert len([*unused.letters()]) == 5


def test_a_copy_counts_by_its_folder(tmp_path: Path) -> None:
    """P3: of equal copies the same folder's counts whatever its files are called.

    Two compactions at once see other names, and must not each delete what the other one keeps.
    """
    _write(tmp_path / "w", [_letter(1)])
    (file,) = (tmp_path / "w").rglob("*.parquet")
    (tmp_path / "n/b").mkdir(parents=True)
    places = set()
    for name in ("a", "z"):
        root = tmp_path / f"n/{name}.parquet"
        root.write_bytes(file.read_bytes())
        (tmp_path / "n/b/x.parquet").write_bytes(file.read_bytes())
        with _store(tmp_path / "n") as store:
            (row,) = store.rows()
        places.add(Path(row["place"]).parent)
        root.unlink()
    assert len(places) == 1


def test_it_failed_again(tmp_path: Path) -> None:
    """P3: a letter that is stored again behind its mark is no longer dealt with."""
    _write(tmp_path, [_letter(1)])
    with _store(tmp_path) as store:
        assert store.resolve(OPEN, "fixed") == 1
    assert _ids(tmp_path, OPEN) == []
    later = replace(_letter(1).failure, last_failed_at=datetime.now(UTC) + timedelta(seconds=1))
    _write(tmp_path, [replace(_letter(1), failure=later)])
    assert _ids(tmp_path, OPEN) == [_letter(1).id]


def test_marks_with_broken_pages(tmp_path: Path) -> None:
    """Marks whose end is whole and whose pages are not are named, and hide nothing."""
    _write(tmp_path, [_letter(1)])
    with _store(tmp_path) as store:
        store.resolve(OPEN, "fixed" * 100)
    (mark,) = tmp_path.rglob("*.resolved")
    content = bytearray(mark.read_bytes())
    content[4:60] = bytes(56)
    mark.write_bytes(content)
    with _store(tmp_path) as store:
        assert len(store.groups(OPEN)) == 1
        assert [Path(one.place).name for one in store.skipped] == [mark.name]
