"""The store over letter files: one shape, each id once, and nothing that a bad file can break."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pytest
from pyarrow import parquet as pq

from sparkguard.core.failure import Category, Cause, Failure
from sparkguard.core.letter import Letter
from sparkguard.core.letter_row import LETTER_SCHEMA, letter_table
from sparkguard.core.record import Record
from sparkguard.deadletters.selection import Selection
from sparkguard.deadletters.store import PARTS, Store
from sparkguard.errors import LettersError
from sparkguard.sinks.base import SinkTask
from sparkguard.sinks.file import FileSink
from sparkguard.sinks.memory import MemorySink
from sparkguard.testing import FaultSink, sample_letters

WHEN = datetime(2024, 2, 29, 12, tzinfo=UTC)


def _letter(number: int, **facts: Any) -> Letter:
    model = sample_letters()[0]
    given = {"last_failed_at": WHEN + timedelta(hours=number), **facts}
    return replace(model, id=f"{number:032x}", failure=replace(model.failure, **given))


def _write(path: str | Path, letters: Iterable[Letter]) -> None:
    writer = FileSink(path=str(path)).open(SinkTask(app="a"))
    for letter in letters:
        writer.write(letter)
    writer.flush()
    writer.close()


def _store(path: str | Path) -> Store:
    return Store({"files": FileSink(path=str(path))})


def test_letters_come_back(tmp_path: Path) -> None:
    """Every letter comes back whole, bytes and times and all."""
    letters = sample_letters()
    _write(tmp_path, letters)
    with _store(tmp_path) as store:
        assert {letter.id: letter for letter in store.letters()} == {one.id: one for one in letters}
        assert store.one(letters[3].id) == letters[3]
        assert store.one("nope") is None


def test_each_id_once(tmp_path: Path) -> None:
    """P3: of second copies the whole letter counts before a pointer, then the later one."""
    first, later = _letter(1), replace(_letter(1), failure=_letter(9).failure)
    pointer = replace(later, overflow="files")
    other, odd = _letter(2), replace(_letter(3), id="no hexadecimal")
    for letters in ([first, other], [later, odd], [pointer], [odd, odd]):
        _write(tmp_path, letters)
    with _store(tmp_path) as store:
        found = [*store.letters()]
        assert sorted(letter.id for letter in found) == sorted([first.id, other.id, odd.id])
        assert later in found
        assert store.stats().copies == 4
        assert sum(group.count for group in store.groups()) == 3


def test_groups(tmp_path: Path) -> None:
    """A group has its count, stages, exception, first and last time, and its letters over time."""
    often = [_letter(at, fingerprint="aa", stage=f"s{at % 2}") for at in range(PARTS)]
    rare = [_letter(100 + at, fingerprint="bb", message="why") for at in range(2)]
    never = [replace(_letter(200), failure=_letter(200, last_failed_at=None).failure)]
    bare = replace(never[0].failure, first_failed_at=None, record=Record(), fingerprint="cc")
    _write(tmp_path, [*often, *rare, replace(never[0], failure=bare)])
    with _store(tmp_path) as store:
        first, second, third = store.groups()
        assert (first.fingerprint, first.count, first.stages) == ("aa", PARTS, {"s0", "s1"})
        assert (first.first, first.last) == (WHEN, WHEN + timedelta(hours=PARTS - 1))
        assert (second.message, second.over_time[-1]) == ("why", 2)
        assert sum(first.over_time) == PARTS
        assert first.over_time[0] > 0
        assert (third.first, sum(third.over_time), third.count) == (None, 0, 1)


def test_selection(tmp_path: Path) -> None:
    """What is selected by id, fingerprint, stage, time and condition, and by several at once."""
    letters = [_letter(at, stage=f"s{at}", fingerprint=f"f'{at}") for at in range(4)]
    _write(tmp_path, letters)

    def ids(**wanted: Any) -> list[str]:
        return sorted(letter.id for letter in store.letters(Selection(**wanted)))

    known = [letter.id for letter in letters]
    with _store(tmp_path) as store:
        assert ids() == known
        assert ids(ids=(known[0], known[3])) == [known[0], known[3]]
        assert ids(fingerprints=("f'1", "f'2")) == known[1:3]
        assert ids(stages=("s2",)) == [known[2]]
        assert ids(since=WHEN + timedelta(hours=1), until=WHEN + timedelta(hours=3)) == known[1:3]
        assert ids(where="stage > 's1' -- a comment", stages=("s1", "s2")) == [known[2]]
        assert ids(where="false or true", stages=("s1",)) == [known[1]]
        assert [letter.id for letter in store.letters(limit=2)] == [known[3], known[2]]
    assert not Selection()
    assert Selection(stages=("s",))


@pytest.mark.parametrize("content", [b"", b"PAR1", b"no parquet at all", None])
def test_corrupt_files(tmp_path: Path, content: bytes | None) -> None:
    """A file that is cut off is named, left out and counted; the others are read."""
    _write(tmp_path, [_letter(1)])
    (good,) = tmp_path.rglob("*.parquet")
    bad = tmp_path / "bad.parquet"
    bad.write_bytes(good.read_bytes()[:-100] if content is None else content)
    with _store(tmp_path) as store:
        assert [letter.id for letter in store.letters()] == [_letter(1).id]
        (skipped,) = store.skipped
    assert skipped.place == str(bad)


def test_corrupt_within(tmp_path: Path) -> None:
    """A file whose end is whole and whose middle is not is found when it is read.

    A letter with a later copy in that file is not lost with it.
    """
    _write(tmp_path, [_letter(1)])
    bad = tmp_path / "bad.parquet"
    table = letter_table(
        [_letter(1), *(_letter(at, message="m" * at) for at in range(2, 3_000))]
    ).set_column(
        LETTER_SCHEMA.get_field_index("last_failed_at"),
        LETTER_SCHEMA.field("last_failed_at"),
        pa.array([WHEN + timedelta(days=999)] * 2_999, pa.timestamp("us", tz="UTC")),
    )
    pq.write_table(table, bad, compression="zstd")
    content = bytearray(bad.read_bytes())
    where = pq.read_metadata(bad).row_group(0).column(LETTER_SCHEMA.get_field_index("message"))
    start = where.dictionary_page_offset or where.data_page_offset
    content[start : start + where.total_compressed_size] = b"\xff" * where.total_compressed_size
    bad.write_bytes(content)
    with _store(tmp_path) as store:
        assert [letter.id for letter in store.letters()] == [_letter(1).id]
        assert [one.place for one in store.skipped] == [str(bad)]
        assert store.stats().letters == 1


def test_other_files(tmp_path: Path) -> None:
    """A Parquet file that holds no letters is left out, what is unfinished is not looked at."""
    _write(tmp_path, [_letter(1)])
    pq.write_table(pa.table({"x": [1]}), tmp_path / "other.parquet")
    pq.write_table(
        pa.table({"id": [1], "category": ["a"], "cause": ["b"]}), tmp_path / "int.parquet"
    )
    (tmp_path / "_tmp-1-a.parquet").write_bytes(b"half")
    (tmp_path / "README").write_text("hello")
    with _store(tmp_path) as store:
        assert [letter.id for letter in store.letters()] == [_letter(1).id]
        why = {Path(one.place).name: one.why for one in store.skipped}
    assert why == {
        "other.parquet": "it has no column 'id', so it is no file of letters",
        "int.parquet": "its column 'id' is int64, not string",
    }


def test_newer_letters(tmp_path: Path) -> None:
    """Columns of a newer version are there for SQL, an older file has them empty."""
    _write(tmp_path, [_letter(1)])
    newer = letter_table([_letter(2)]).append_column("mood", pa.array(["bad"]))
    pq.write_table(newer, tmp_path / "newer.parquet")
    old = letter_table([_letter(3)]).drop_columns(["overflow", "headers", "timed_out"])
    pq.write_table(old, tmp_path / "older.parquet")
    with _store(tmp_path) as store:
        assert store.skipped == ()
        found = store.sql("select id, mood, overflow from letters order by id").rows
        assert [row[1:] for row in found] == [(None, None), ("bad", None), (None, None)]
        assert {letter.id for letter in store.letters()} == {_letter(at).id for at in (1, 2, 3)}


def test_newer_cause(tmp_path: Path) -> None:
    """A cause that this version does not know is a sentence, and can still be looked at."""
    table = letter_table([_letter(1)])
    at = table.schema.get_field_index("cause")
    pq.write_table(table.set_column(at, "cause", pa.array(["boredom"])), tmp_path / "n.parquet")
    with _store(tmp_path) as store:
        assert [row["cause"] for row in store.rows()] == ["boredom"]
        with pytest.raises(LettersError, match="was written by 0: 'boredom'"):
            next(store.letters())


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        ("selec 1", "syntax error"),
        ("select nope from letters", "nope"),
        ("select * from elsewhere", "elsewhere"),
        ("select 'x'::integer from letters", "Could not convert"),
        ("drop view letters", "Only one query"),
        ("copy (select 1) to 'x.csv'", "Only one query"),
        ("select 1; select 2", "Only one query"),
        ("", "Only one query"),
    ],
)
def test_mistakes_in_sql(tmp_path: Path, query: str, sentence: str) -> None:
    """A mistake is a sentence; nothing but one query is run, and no file is blamed."""
    _write(tmp_path, [_letter(1)])
    with _store(tmp_path) as store:
        with pytest.raises(LettersError, match=sentence):
            store.sql(query)
        assert store.skipped == ()
        if "1" not in query and query.startswith("select"):
            return
        with pytest.raises(LettersError):
            store.groups(Selection(where=query or "("))


def test_sql(tmp_path: Path) -> None:
    """A query may be as long as people write them, and gives at most so many rows."""
    _write(tmp_path, [_letter(at) for at in range(5)])
    with _store(tmp_path) as store:
        answer = store.sql("with a as (from letters) select count(*) as n from a; -- all")
        assert answer == (("n",), [(5,)], False)
        # A bar of progress would stand among the answers, on stdout.
        assert store.sql("select current_setting('enable_progress_bar')").rows == [(False,)]
        answer = store.sql("select id from letters order by id", limit=2)
        assert (answer.rows, answer.more) == ([(_letter(0).id,), (_letter(1).id,)], True)


def test_no_letters(tmp_path: Path) -> None:
    """An empty folder, and one that is not there, hold no letters."""
    for path in (tmp_path, tmp_path / "nope"):
        with _store(path) as store:
            assert store.groups() == []
            assert [*store.letters()] == []
            assert (store.stats().letters, store.stats().first) == (0, None)
            assert store.sql("select * from letters").rows == []


def test_one_file(tmp_path: Path) -> None:
    """A path may be a single file, and what is exported is one."""
    _write(tmp_path / "a", sample_letters())
    out = tmp_path / "out.parquet"
    with _store(tmp_path / "a") as store:
        assert store.export(out, Selection(where="value is not null")) == len(sample_letters()) - 1
    with _store(out) as store:
        wanted = [one for one in sample_letters() if one.record.value is not None]
        assert {letter.id: letter for letter in store.letters()} == {one.id: one for one in wanted}


def test_other_filesystems(tmp_path: Path) -> None:
    """Letters in a store of fsspec's are read in place; a corrupt file there is named too."""
    path = f"memory://letters-{tmp_path.name}"
    _write(path, sample_letters())
    fsspec.filesystem("memory").pipe(f"/letters-{tmp_path.name}/bad.parquet", b"half")
    with _store(path) as store:
        assert {one.id for one in store.letters()} == {one.id for one in sample_letters()}
        assert [one.place.rpartition("/")[2] for one in store.skipped] == ["bad.parquet"]


def test_several_sinks(tmp_path: Path) -> None:
    """A store reads several sinks as one, says which, and names one that it cannot read."""
    memory = MemorySink()
    writer = memory.open(SinkTask())
    writer.write(_letter(1))
    writer.flush()
    _write(tmp_path, [_letter(2)])
    files = FileSink(path=str(tmp_path))
    fault = FaultSink(inner=memory, marker=str(tmp_path / "down"))
    with Store({"it's": files, "memory": memory, "fault": fault}) as store:
        found = {row["id"]: row["sink"] for row in store.rows()}
        assert [(one.place, one.why) for one in store.skipped] == [
            ("sink fault", "a FaultSink cannot be read back")
        ]
    assert found == {_letter(1).id: "memory", _letter(2).id: "it's"}


def test_odd_names(tmp_path: Path) -> None:
    """Names of folders are no SQL and no pattern."""
    place = tmp_path / "it's [a] *.parquet" / "date=1"
    place.mkdir(parents=True)
    pq.write_table(letter_table([_letter(1)]), place / "a.parquet")
    with _store(tmp_path) as store:
        assert [letter.id for letter in store.letters()] == [_letter(1).id]


def test_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The temporary folder goes with the store, also where it could not be made."""
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(place))
    _write(tmp_path / "letters", [_letter(1)])
    with _store(tmp_path / "letters") as store:
        next(store.letters())
        assert [*place.iterdir()] != []
    assert [*place.iterdir()] == []
    with pytest.raises(Exception, match="No filesystem"):
        _store("nope://x")
    assert [*place.iterdir()] == []


def test_failure_without_facts(tmp_path: Path) -> None:
    """A letter of which hardly anything is known is a letter."""
    bare = Failure(stage="", category=Category.PROCESSING, cause=Cause.POISON, exception_types=())
    _write(tmp_path, [Letter(id="a", failure=bare)])
    with _store(tmp_path) as store:
        (group,) = store.groups()
        assert (group.fingerprint, group.count, group.stages) == ("", 1, set())
        assert store.stats().by["stage"] == {"": 1}


def test_sinks_that_share_files(tmp_path: Path) -> None:
    """P3: a file that two sinks have counts for the first one, and hides nothing."""
    _write(tmp_path / "in", [_letter(1)])
    one, all_, again = (FileSink(path=str(tmp_path / name)) for name in ("in", ".", "in"))
    with Store({"one": one, "all": all_, "again": again}) as store:
        assert [row["sink"] for row in store.rows()] == ["one"]
        assert store.stats().copies == 0


def test_a_condition_is_no_statement(tmp_path: Path) -> None:
    """A user's condition cannot end the query that it stands in."""
    out = tmp_path / "out.csv"
    evil = f"true); copy (select 1) to '{out}'; select 1, 2 from letters where (true"
    for condition in (evil, "true) or (true", "true union select 1", "'"):
        with pytest.raises(LettersError):
            Selection(where=condition)
    assert Selection(where="attempts > 1 -- and a comment")
    assert not out.exists()


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("sink", pa.array(["x"])),
        ("offset", pa.array([2**63], pa.uint64())),
        ("_row", pa.array([1])),
    ],
)
def test_columns_that_no_letter_has(tmp_path: Path, name: str, values: pa.Array) -> None:
    """A file with such a column is left out and named; the others are read."""
    _write(tmp_path, [_letter(1)])
    table = letter_table([_letter(2)])
    at = table.schema.get_field_index(name)
    table = table.append_column(name, values) if at < 0 else table.set_column(at, name, values)
    pq.write_table(table, tmp_path / "odd.parquet")
    with _store(tmp_path) as store:
        assert [one.id for one in store.letters()] == [_letter(1).id]
        (skipped,) = store.skipped
    assert name in skipped.why
