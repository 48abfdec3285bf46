"""Redrives without a broker: what would go, the journal, the lock, the order, the outcomes."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import fs as pafs
from pyarrow import parquet as pq
from typer.testing import CliRunner, Result

from sparkguard import filesystem
from sparkguard.cli import app
from sparkguard.cli.letters import Source
from sparkguard.core.letter import Letter
from sparkguard.core.record import Header
from sparkguard.core.replay import ORIGIN_OFFSET, ORIGIN_PARTITION, ORIGIN_TOPIC, REPLAYS
from sparkguard.deadletters import lock
from sparkguard.deadletters.journal import Entry, Journal, Run
from sparkguard.deadletters.lock import Lock, only_one
from sparkguard.deadletters.selection import Selection
from sparkguard.deadletters.store import Store
from sparkguard.driver.checkpoint import Checkpoint
from sparkguard.errors import InvalidSettingError, LettersError
from sparkguard.redrive import work
from sparkguard.redrive.fates import Fate, Rules, Way, freeze, origins, shares
from sparkguard.redrive.outcomes import Outcomes
from sparkguard.redrive.redrive import Redrive
from sparkguard.redrive.sending import Parcel, Target, waves
from sparkguard.redrive.through import Through
from sparkguard.redrive.work import chunks
from sparkguard.sinks._kafka_producer import Message
from sparkguard.sinks.base import Sink, SinkTask
from sparkguard.sinks.file import FileSink
from sparkguard.sinks.memory import MemorySink
from sparkguard.testing import sample_letters

MODEL = sample_letters()[0]
WHEN = datetime(2024, 2, 29, tzinfo=UTC)
RUN = Run(id="20240229-080000-abc", letters=6)


def _letter(number: int, headers: tuple[Header, ...] = (), **facts: Any) -> Letter:
    known = {"topic": "in", "partition": 0, "offset": number, "timestamp": WHEN, **facts}
    of_letter = {name: known.pop(name) for name in ("replays", "overflow") if name in known}
    of_failure = {n: known.pop(n) for n in ("payload", "last_failed_at") if n in known}
    record = replace(MODEL.record, headers=headers, **known)
    failure = replace(MODEL.failure, record=record, **of_failure)
    return replace(MODEL, id=f"{number:032x}", failure=failure, **of_letter)


def _stored(path: Path, letters: list[Letter], state: Path | None = None) -> Store:
    sink = FileSink(path=str(path / "letters"))
    writer = sink.open(SinkTask())
    for letter in letters:
        writer.write(letter)
    writer.flush()
    return Store({"files": sink}, state=None if state is None else str(state))


def _frozen(path: Path, letters: list[Letter], rules: Rules = Rules()) -> Path:  # noqa: B008
    with _stored(path, letters) as store:
        freeze(store, Selection(), rules, path / "frozen.parquet", way=Way.TOPIC)
    return path / "frozen.parquet"


def _fates(store: Store, *, to_origin: bool = False, **rules: Any) -> dict[Fate, int]:
    found = shares(store, Selection(), Rules(**rules), Way.ORIGIN if to_origin else Way.TOPIC)
    return {one.fate: sum(x.count for x in found if x.fate is one.fate) for one in found}


def test_fates(tmp_path: Path) -> None:
    """Each letter has one fate; what a header says of replays counts as what the letter says."""
    letters = [
        _letter(1),
        _letter(2, replays=3),
        _letter(3, headers=((REPLAYS, b"3"), (REPLAYS, b"0"))),
        _letter(4, headers=((REPLAYS, b"\xff9"), ("x", None))),
        _letter(5, overflow="files"),
        _letter(6, payload="row"),
        _letter(7, topic=None, partition=None, offset=None, columns="{}"),
        _letter(8, topic=None, partition=None, offset=None, file="/a"),
        _letter(9, topic=None, partition=None, offset=None),
        _letter(10, payload="something new"),
    ]
    with _stored(tmp_path, letters) as store:
        rest = {Fate.POINTER: 1, Fate.ROW: 3, Fate.NEWER: 1}
        assert _fates(store) == {Fate.SEND: 3, Fate.WORN_OUT: 2, **rest}
        assert _fates(store, parking_lot="lot") == {Fate.SEND: 3, Fate.PARK: 2, **rest}
        assert _fates(store, max_replays=4) == {Fate.SEND: 5, **rest}
        assert _fates(store, to_origin=True)[Fate.ROW] == 4
        assert origins(store, Selection(), Rules()) == {"in"}


def test_order(tmp_path: Path) -> None:
    """Chosen letters lie in the order in which their records first came in."""
    came_back = ((ORIGIN_TOPIC, b"in"), (ORIGIN_PARTITION, b"0"), (ORIGIN_OFFSET, b"1"))
    letters = [
        _letter(12),
        _letter(3, headers=came_back, topic="z", offset=99),
        _letter(2),
        _letter(5, partition=1),
        _letter(6, topic="a"),
        _letter(7, topic=None, partition=None, offset=None, timestamp=WHEN + timedelta(1)),
        _letter(8, topic=None, partition=None, offset=None),
    ]
    ids = pq.read_table(_frozen(tmp_path, letters, Rules(keep_order=True)))["id"].to_pylist()
    assert [int(one, 16) for one in ids] == [6, 3, 2, 12, 5, 8, 7]


def test_newer_cause(tmp_path: Path) -> None:
    """A cause that this version does not know makes a letter one of a later version."""
    with _stored(tmp_path, [_letter(1)]) as store:
        store.export(tmp_path / "one.parquet")
    table = pq.read_table(tmp_path / "one.parquet")
    at = table.schema.get_field_index("cause")
    newer = tmp_path / "newer"
    newer.mkdir()
    pq.write_table(table.set_column(at, "cause", [["cosmic"]]), newer / "one.parquet")
    with Store({"files": FileSink(path=str(newer))}) as store:
        assert _fates(store) == {Fate.NEWER: 1}


@pytest.mark.parametrize("scheme", ["", "memory://journal-"])
def test_journal(tmp_path: Path, scheme: str) -> None:
    """It knows the next row after any end, and whose letters were sent."""
    state = f"{scheme}{tmp_path.name}" if scheme else str(tmp_path / "state")
    frozen = _frozen(tmp_path, [_letter(at) for at in range(6)])
    journal = Journal(state)
    assert journal.runs() == []
    journal.begin(RUN, frozen)
    assert journal.runs() == [RUN]
    assert journal.position(RUN) == (0, frozenset())
    entries = [Entry(f"{at:032x}", at, "sent", None, "again", 0, at) for at in range(6)]
    journal.append(RUN, 0, 2, entries[:2])
    journal.append(RUN, 2, None, [entries[3]])
    assert journal.position(RUN) == (2, frozenset({3}))
    journal.append(RUN, 2, 2, [entries[2]])
    assert journal.position(RUN) == (4, frozenset())
    with journal.letters(RUN) as file:
        (rest,) = chunks(file, 4)
        assert (rest.first, rest.count) == (4, 2)
    with Store({"files": FileSink(path=str(tmp_path / "letters"))}, state=state) as store:
        assert _fates(store) == {Fate.SEND: 2, Fate.ALREADY: 4}
        assert _fates(store, again=True) == {Fate.SEND: 6}
    ended = journal.end(RUN)
    assert journal.run(RUN.id[:8]) == ended
    with pytest.raises(LettersError, match="has ended"):
        journal.letters(ended)
    for wrong in ("x", ""):
        journal.begin(replace(RUN, id="20240229-090000-abc"), frozen)
        with pytest.raises(LettersError, match="redrive"):
            journal.run(wrong)


def test_leavings(tmp_path: Path) -> None:
    """Letters of a redrive that was killed before it began are removed by the next one."""
    frozen = _frozen(tmp_path, [_letter(1)])
    left = tmp_path / "state/redrive/killed/letters.parquet"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"")
    journal = Journal(str(tmp_path / "state"))
    journal.begin(RUN, frozen)
    journal.begin(replace(RUN, id="b"), frozen)
    assert not left.exists()
    assert {one.parent.name for one in (tmp_path / "state").rglob("*.parquet")} == {RUN.id, "b"}


def test_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every row is in one chunk, from wherever it begins, in few letters and few bytes."""
    letters = [_letter(at, value=b"v" * (50_000 if at > 90 else 10)) for at in range(100)]
    file = pq.ParquetFile(_frozen(tmp_path, letters))
    monkeypatch.setattr(work, "CHUNK_LETTERS", 30)
    monkeypatch.setattr(work, "CHUNK_BYTES", 200_000)
    monkeypatch.setattr(work, "_BATCH_BYTES", 100_000)
    for first in (0, 1, 29, 30, 99, 100):
        found = [*chunks(file, first)]
        rows = [
            at for one in found for start, b in one.batches for at in range(start, start + len(b))
        ]
        assert rows == list(range(first, 100))
        assert all(one.count <= 30 for one in found)
        assert all(sum(b.nbytes for _, b in one.batches) < 900_000 for one in found)
    assert {one.count for one in chunks(file, 0, rate=2)} == {4}


@given(st.lists(st.sampled_from([None, b"", b"a", b"b", b"c"])))
def test_waves(keys: list[bytes | None]) -> None:
    """Each letter is in one wave, no key twice in one, and a key's letters are in their order."""
    given_ = [Parcel(at, str(at), Message("t", key=key)) for at, key in enumerate(keys)]
    found = waves(given_)
    assert sorted(one for wave in found for one in wave) == given_
    for wave in found:
        named = [one.message.key for one in wave if one.message and one.message.key is not None]
        assert len(named) == len({*named})
        assert wave
    for key in {*keys} - {None}:
        rows = [one.row for wave in found for one in wave if one.message and one.message.key == key]
        assert rows == sorted(rows)


def test_one_of_many_creates(tmp_path: Path) -> None:
    """Of those that make the same file, one succeeds."""
    local = pafs.LocalFileSystem()
    for number in range(20):
        path = str(tmp_path / f"{number}")
        with ThreadPool(8) as pool:
            made = pool.starmap(filesystem.create, [(local, path, b"%d" % who) for who in range(8)])
        assert made.count(True) == 1
        assert filesystem.read(local, path) == b"%d" % made.index(True)
    assert len(filesystem.list(local, str(tmp_path))) == 20


def _hold(state: Path, **facts: Any) -> None:
    held = {**Lock(str(state / "redriving.json")).holder, "token": "x", **facts}
    (state / "redriving.json").write_text(json.dumps(held))


def test_lock(tmp_path: Path) -> None:
    """One at a time; of a dead process of this machine it is taken, of others when asked."""
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    with (
        only_one(str(tmp_path)),
        pytest.raises(LettersError, match=r"is running: .* process \d+, since"),
        only_one(str(tmp_path)),
    ):
        pass
    assert [*tmp_path.iterdir()] == []
    _hold(tmp_path, pid=gone.pid)
    with only_one(str(tmp_path)):
        pass
    _hold(tmp_path, pid=gone.pid, host="elsewhere")
    with pytest.raises(LettersError, match="elsewhere"), only_one(str(tmp_path)):
        pass
    with only_one(str(tmp_path), take_over=True) as first:
        first.check()
        with only_one(str(tmp_path), take_over=True):
            with pytest.raises(LettersError, match="took over"):
                first.check()
            first.give_up()
            assert (tmp_path / "redriving.json").exists()
    assert [*tmp_path.iterdir()] == []


def test_a_state_that_cannot_be_written(tmp_path: Path) -> None:
    """The file system's error is a sentence about the state."""
    (tmp_path / "state").write_text("a file")
    target = Target(servers="127.0.0.1:1", topic="t")
    with pytest.raises(LettersError, match="cannot be read or written"):
        Redrive(str(tmp_path / "state"), target, Rules(), {}).resume("x")


@pytest.fixture
def memory() -> MemorySink:
    """A sink without a folder."""
    return MemorySink()


@pytest.fixture
def redriven(tmp_path: Path, memory: MemorySink) -> Iterator[Store]:
    """Six letters of it, of which five went; one of them failed again."""
    writer = memory.open(SinkTask())
    for at in range(6):
        writer.write(_letter(at))
    writer.write(_letter(50, topic="again", partition=1, offset=7))
    writer.flush()
    state = str(tmp_path / "state")
    Journal(state).begin(RUN, _frozen(tmp_path, [_letter(1)]))
    places = [(0, 3), (0, 4), (0, 5), (1, 7)]
    entries = [
        Entry(f"{row:032x}", row, "sent", None, "again", *place) for row, place in enumerate(places)
    ]
    entries.append(Entry(f"{4:032x}", 4, "left", "too large"))
    Journal(state).append(RUN, 0, 5, entries)
    with Store({"memory": memory}, state=state) as store:
        yield store


def test_outcomes(redriven: Store, tmp_path: Path) -> None:
    """Resolved is what the query has committed and no letter has; that can be marked, once."""
    (tmp_path / "cp/commits").mkdir(parents=True)
    (tmp_path / "cp/offsets").mkdir()
    (tmp_path / "cp/commits/1").touch()
    for batch, upto in ((1, 5), (2, 9)):
        line = json.dumps({"again": {"0": upto, "1": 9}, "in": {"0": 100}})
        (tmp_path / f"cp/offsets/{batch}").write_text(f"v1\n{{}}\n{line}\n-\n")
    reached = Checkpoint(str(tmp_path / "cp")).reached()
    assert reached == {("again", "0"): 5, ("again", "1"): 9, ("in", "0"): 100}
    outcomes = Outcomes(redriven, reached)
    counts = {"resolved": 2, "waiting": 1, "failed_again": 1, "left": 1}
    assert outcomes.counts([RUN.id, "other"]) == {RUN.id: counts, "other": {}}
    assert Outcomes(redriven).counts([RUN.id])[RUN.id]["waiting"] == 3
    assert outcomes.resolve(RUN.id, "me") == 2
    (marks,) = (tmp_path / "state/resolved").iterdir()
    marked = pq.read_table(marks)
    assert {int(one, 16) for one in marked["id"].to_pylist()} == {0, 1}
    assert {*marked["reason"].to_pylist()} == {f"redriven by {RUN.id}"}


def test_marks_in_the_state(redriven: Store, memory: MemorySink, tmp_path: Path) -> None:
    """Letters beside which nothing can be written are marked in the state."""
    assert redriven.resolve(Selection(ids=(f"{1:032x}",)), "seen", "me") == 1
    with Store({"memory": memory}, state=str(tmp_path / "state")) as again:
        assert again.stats(Selection(unresolved=True)).letters == 6
    with Store({"memory": memory}) as blind:
        assert blind.stats(Selection(unresolved=True)).letters == 7
        with pytest.raises(LettersError, match="no state is named"):
            blind.resolve(Selection(), "all")


def test_nothing_committed(tmp_path: Path) -> None:
    """A folder that is no checkpoint tells of no offsets."""
    assert Checkpoint(str(tmp_path)).reached() == {}


def test_through_and_failed_again(tmp_path: Path) -> None:
    """P1: what failed again as the same letter is neither resolved nor left out of the next one."""
    letters = [_letter(at, last_failed_at=WHEN) for at in range(2)]
    anew = _letter(1, last_failed_at=WHEN + timedelta(seconds=1))
    state = tmp_path / "state"
    journal, frozen = Journal(str(state)), _frozen(tmp_path / "then", letters)
    journal.begin(RUN, frozen)
    went = work.Processed(journal, RUN, Through(name="m:f", function=None))
    for chunk in chunks(pq.ParquetFile(frozen), 0):
        # As if it were gone on with: some of them are noted, and all were processed.
        went.chunk(chunk, frozenset({9}), bool)
    with _stored(tmp_path, [*letters, anew], state) as store:
        assert Outcomes(store).counts([RUN.id]) == {RUN.id: {"through": 1, "failed_again": 1}}
        assert _fates(store) == {Fate.SEND: 1, Fate.ALREADY: 1}
        assert Outcomes(store).resolve(RUN.id, "me") == 1
    with _stored(tmp_path, [], state) as store:
        assert store.ids(Selection(unresolved=True), 9) == [anew.id]


def test_put_off_is_not_resolved(redriven: Store, memory: MemorySink, tmp_path: Path) -> None:
    """P1: a record that waits in a retry topic has not come through."""
    writer = memory.open(SinkTask())
    writer.write(replace(_letter(51, topic="again", partition=0, offset=3), due=WHEN))
    writer.flush()
    with Store({"memory": memory}, state=str(tmp_path / "state")) as store:
        outcomes = Outcomes(store, {("again", "0"): 9, ("again", "1"): 9})
        assert outcomes.counts([RUN.id])[RUN.id]["put_off"] == 1
        assert outcomes.resolve(RUN.id, "me") == 2
    (marks,) = (tmp_path / "state/resolved").iterdir()
    assert {int(one, 16) for one in pq.read_table(marks)["id"].to_pylist()} == {1, 2}


def test_half_a_view_marks_nothing(tmp_path: Path, redriven: Store, memory: MemorySink) -> None:
    """P1: in a file that cannot be read may lie what failed again."""
    (tmp_path / "other").mkdir()
    (tmp_path / "other/half.parquet").write_bytes(b"PAR1")
    sinks: dict[str, Sink] = {"memory": memory, "other": FileSink(path=str(tmp_path / "other"))}
    with Store(sinks, state=str(tmp_path / "state")) as store:
        outcomes = Outcomes(store, {("again", "0"): 9})
        with pytest.raises(LettersError, match=r"Nothing was marked: .*half\.parquet"):
            outcomes.resolve(RUN.id, "me")
    assert not (tmp_path / "state/resolved").exists()


def test_not_to_two_places(tmp_path: Path) -> None:
    """A redrive that was begun at one cluster does not go on at another one."""
    run = replace(RUN, servers="a:1,b:1", topic="again", selection="x")
    Journal(str(tmp_path)).begin(run, _frozen(tmp_path, [_letter(1)]))

    def redrive(servers: str) -> Redrive:
        target = Target(servers=servers, topic="again", config={"acks": 0})
        return Redrive(str(tmp_path), target, Rules(), {})

    with pytest.raises(LettersError, match=r"goes to a:1,b:1, and not to c:1"):
        redrive("c:1").resume(RUN.id)
    with (
        Store({}) as store,
        pytest.raises(LettersError, match=r"goes to a:1,b:1, and not to c:1"),
    ):
        redrive("c:1").start(store, Selection(), "x")
    with pytest.raises(InvalidSettingError, match="acks"):
        redrive("b:1, a:1").resume(RUN.id)


def test_whose_fault_it_is(tmp_path: Path) -> None:
    """Only what the state's filesystem raises is told as its fault."""
    run = replace(RUN, through="m:f", letters=1)
    Journal(str(tmp_path)).begin(run, _frozen(tmp_path, [_letter(1)]))
    redrive = Redrive(str(tmp_path), Through(name="m:f", function=None), Rules(), {})

    def gone(_run: Run, _done: int) -> None:
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        redrive.resume(RUN.id, progress=gone)


LATER = {"type": "kafka", "bootstrap_servers": "127.0.0.1:1", "topic": "orders.retry"}


@pytest.fixture
def dlq(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Runs `sparkguard dlq …` with the settings of the page on retry_later."""
    monkeypatch.chdir(tmp_path)
    settings = {
        "app": "a",
        "state": {"path": str(tmp_path / "state")},
        "sinks": {"default": {"type": "file", "path": "letters"}, "retry": LATER},
        "redrive": {"topic": "orders.redrive"},
        "stages": {"price": {"retry_later": {"delays": ["1m"]}}},
    }
    Path("guard.yaml").write_text(json.dumps(settings))

    def call(*arguments: str) -> Result:
        done = CliRunner().invoke(app, ["dlq", *arguments, "--config", "guard.yaml"])
        assert isinstance(done.exception, SystemExit | None), done.exception
        return done

    return call


def test_beside_a_retry_topic(dlq: Callable[..., Result]) -> None:
    """It is no target, redrives look into it, and its brokers are those where nothing else says."""
    loop = dlq("redrive", "--everything", "--to", "orders.retry")
    assert (loop.exit_code, "letters are no place to send" in loop.stderr) == (1, True)
    assert {*Source(config=Path("guard.yaml")).sinks(retrying=True)} == {"default", "retry"}
    plan = json.loads(dlq("redrive", "--everything", "--dry-run", "--json").stdout)
    assert plan["target"] == {"topic": "orders.redrive", "bootstrap_servers": "127.0.0.1:1"}
    assert "No broker answers at 127.0.0.1:1" in dlq("redrives").stderr


def test_redrives_see_all_or_nothing(dlq: Callable[..., Result], tmp_path: Path) -> None:
    """P1: no option leaves letters out, and marks need every sink."""
    for option in ("--sink=default", "--since=2h", "--partition=0", "--from-offset=3"):
        assert dlq("redrives", option).exit_code == 2
    alone = ["dlq", "redrives", "r", "--resolve", "--checkpoint", "cp", "--path", str(tmp_path)]
    done = CliRunner().invoke(app, [*alone, "--state", "state"])
    assert (done.exit_code, "needs every sink" in done.stderr) == (2, True)


def test_damaged_files(dlq: Callable[..., Result], tmp_path: Path) -> None:
    """What cannot be understood is a sentence; a lock like that is taken over when asked."""
    state = tmp_path / "state"
    (state / "redrive").mkdir(parents=True)
    (state / "redrive/x.json").write_text("[]")
    assert "redrive/x.json in the state tells of no redrive" in dlq("redrives").stderr
    (state / "redrive/x.json").unlink()
    Journal(str(state)).begin(replace(RUN, servers="127.0.0.1:1"), tmp_path / "guard.yaml")
    assert "state cannot be read" in dlq("redrive", "--resume", RUN.id).stderr
    for sub, data in (("commits", b""), ("offsets", b"v1\n{}\n\xff\n")):
        (tmp_path / "cp" / sub).mkdir(parents=True)
        (tmp_path / "cp" / sub / "0").write_bytes(data)
    assert "cp is damaged" in dlq("redrives", "--checkpoint", "cp").stderr
    for text in ("{", "[]", '{"host": null}'):
        (state / "redriving.json").write_text(text)
        with pytest.raises(LettersError, match="Another redrive"), only_one(str(state)):
            pass
        with only_one(str(state), take_over=True):
            pass


def test_ended_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A redrive that ends while its abandoning waits for the lock has ended, not been given up."""
    journal = Journal(str(tmp_path / "state"))
    journal.begin(RUN, _frozen(tmp_path, [_letter(1)]))

    @contextmanager
    def late(state: str) -> Iterator[None]:
        with only_one(state):
            journal.end(RUN)
            yield

    monkeypatch.setattr(lock, "only_one", late)
    where = ["--path", str(tmp_path / "letters"), "--state", str(tmp_path / "state")]
    done = CliRunner().invoke(app, ["dlq", "redrives", RUN.id, "--abandon", *where])
    assert done.exit_code == 0, done.output
    assert journal.run(RUN.id).abandoned is False
