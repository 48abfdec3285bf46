"""The audit's arithmetic: records with a known fate, then one of them goes or comes twice."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet as pq

from sparkguard.audit.audit import audit
from sparkguard.audit.check import Asked, Audit, Check, Verdict
from sparkguard.core.ledger import FACTS, Account
from sparkguard.core.letter import Letter, letter_id
from sparkguard.core.record import Record
from sparkguard.driver.accounts import Accounts
from sparkguard.driver.ledger import Ledger
from sparkguard.driver.state import State
from sparkguard.errors import LettersError, UnknownNameError
from sparkguard.sinks.base import SinkTask
from sparkguard.sinks.file import FileSink
from sparkguard.testing import sample_letters
from tests.support.checkpoint import QUERY, Written

Place = tuple[int, int]
FATES = ("out", "out", "filtered", "skipped", "dead_lettered", "delayed")


@dataclass(frozen=True, slots=True)
class Batch:
    """What became of the records of one batch; `lost`: its driver died before it was counted."""

    fates: list[str]
    lost: bool = False


class World:
    """An app that has run: ledger, checkpoint, letters and output, each as it is written."""

    def __init__(self, folder: Path, batches: Iterable[Batch]) -> None:
        self.folder = folder
        self.fates: dict[Place, str] = {}
        self.batch_of: dict[Place, int] = {}
        self.batches = [*batches]
        ends = [0, 0]
        checkpoint = Written(folder / "checkpoint")
        checkpoint.source(0, {"orders": {"0": 0, "1": 0}})
        for number, batch in enumerate(self.batches):
            for fate in batch.fates:
                partition = len(self.fates) % 2
                self.fates[partition, ends[partition]] = fate
                self.batch_of[partition, ends[partition]] = number
                ends[partition] += 1
            checkpoint.batch(number, {"orders": {"0": ends[0], "1": ends[1]}})
        self.state = State(str(folder / "state"))
        Accounts(self.state).store(map(self._account, range(len(self.batches))))
        self.letters = self.at("dead_lettered")
        self.delayed = self.at("delayed")
        self.out = self.at("out")

    def at(self, fate: str) -> list[Place]:
        """The places of the records that went this way."""
        return [place for place, found in self.fates.items() if found == fate]

    def audit(self, **asked: Any) -> Audit:
        """Write what lies in files, and audit all of it."""
        self._write_letters()
        self._write_output()
        given = {"checkpoints": [str(self.folder / "checkpoint")], "outputs": [self.path("out")]}
        sinks = {"default": FileSink(path=self.path("dead"))}
        return audit("app", Ledger(self.state), sinks, Asked(**{**given, **asked}))

    def path(self, name: str) -> str:
        """A path in its folder."""
        return str(self.folder / name)

    def _account(self, number: int) -> Account:
        batch = self.batches[number]
        counts = Counter(batch.fates)
        stage = dict.fromkeys(FACTS, 0) | {fact: counts[fact] for fact in FATES[2:]}
        return Account(
            flow="main",
            query_id=QUERY,
            batch_id=number,
            records_in=len(batch.fates),
            records_out=0 if batch.lost else counts["out"],
            rows_out=0 if batch.lost else counts["out"],
            stages={} if batch.lost else {"price": stage},
            counts_lost=batch.lost,
            source=not batch.lost,
        )

    def letter(self, place: Place, **facts: Any) -> Letter:
        """The letter of a record."""
        model = sample_letters()[0]
        record = Record(value=b"1", topic="orders", partition=place[0], offset=place[1])
        known = {
            "app": "app",
            "flow": "main",
            "stage": "price",
            "query_id": QUERY,
            "batch_id": self.batch_of.get(place),
            "path": "",
            "record": record,
            **facts,
        }
        failure = replace(model.failure, **known)
        return replace(model, id=letter_id(failure), failure=failure)

    def _write_letters(self) -> None:
        store(self.path("dead"), [self.letter(place) for place in self.letters])
        due = datetime(2024, 1, 1, tzinfo=UTC)
        again = [replace(self.letter(place), due=due) for place in self.delayed]
        store(self.path("dead"), again)

    def _write_output(self) -> None:
        folder = self.folder / "out"
        folder.mkdir(exist_ok=True)
        write_places(folder / "part-0.parquet", self.out)


def store(path: str, letters: list[Letter]) -> None:
    """Store letters in a file sink."""
    writer = FileSink(path=path).open(SinkTask(app="app"))
    for letter in letters:
        writer.write(letter)
    writer.flush()


def write_places(file: Path, places: list[Place], topic: str = "orders") -> None:
    """A Parquet file of rows that carry their coordinates."""
    columns = {
        "total": pa.array([1.5] * len(places)),
        "topic": pa.array([topic] * len(places), pa.string()),
        "partition": pa.array([place[0] for place in places], pa.int32()),
        "offset": pa.array([place[1] for place in places], pa.int64()),
    }
    pq.write_table(pa.table(columns), file)


def verdicts(found: Audit) -> dict[str, Verdict]:
    """Each check's verdict."""
    return {f"{check.kind} {check.of}": check.verdict for check in found.checks}


def one(found: Audit, kind: str, of: str) -> Check:
    """The check of this kind."""
    (check,) = (it for it in found.checks if (it.kind, it.of) == (kind, of))
    return check


def places_in(check: Check) -> set[Place]:
    """The coordinates that a check lists."""
    found = set()
    for text in check.places:
        head, _, tail = text.partition(" ")[0].removeprefix("orders[").partition("]@")
        first, _, last = tail.partition("..")
        found |= {(int(head), at) for at in range(int(first), int(last or first) + 1)}
    return found


fates = st.lists(st.sampled_from(FATES), max_size=12)
worlds = st.lists(fates, min_size=1, max_size=3)


@settings(max_examples=12)
@given(st.lists(st.builds(Batch, fates, st.booleans()), min_size=1, max_size=3))
def test_what_adds_up(batches: list[Batch]) -> None:
    """P1, P4: whatever became of the records, the audit finds each; lost counts are not wrong."""
    with tempfile.TemporaryDirectory() as folder:
        found = World(Path(folder), batches).audit()
    assert found.adds_up
    lost = any(batch.lost and batch.fates for batch in batches)
    assert (Verdict.LOST in verdicts(found).values()) == lost
    assert one(found, "account", "main").expected == sum(len(it.fates) for it in batches)


@settings(max_examples=12)
@given(worlds, st.data())
def test_one_goes(batches: list[list[str]], data: st.DataObject) -> None:
    """P1: a letter or a row that is not there is named, with what left its batch on purpose."""
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder), map(Batch, [*batches, ["out", "dead_lettered"]]))
        kept = data.draw(st.sampled_from([world.letters, world.out]))
        gone = data.draw(st.sampled_from(kept))
        kept.remove(gone)
        found = world.audit()
    check = one(found, "places", "missing")
    nowhere = {*world.at("filtered"), *world.at("skipped"), *world.at("delayed")}
    assert not found.passes(allow_doubled=True)
    assert (check.verdict, check.expected) == (Verdict.MISSING, len(nowhere))
    in_it = {place for place in nowhere if world.batch_of[place] == world.batch_of[gone]}
    assert places_in(check) == in_it | {gone}
    what = "letters main.price" if kept is world.letters else "output rows"
    assert {*wrong(found)} == {"places missing", what}


@settings(max_examples=12)
@given(worlds, st.data())
def test_one_twice(batches: list[list[str]], data: st.DataObject) -> None:
    """P1: a record in two places is named; that may be allowed, for at least once allows it."""
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder), map(Batch, [*batches, ["out", "dead_lettered"]]))
        place = data.draw(st.sampled_from(world.letters + world.out))
        into = data.draw(st.sampled_from([world.letters, world.out]))
        again = into is world.letters and place in into
        into.append(place)
        found = world.audit()
    check = one(found, "places", "doubled")
    # A letter that is stored twice is one letter (P3).
    assert places_in(check) == (set() if again else {place})
    assert found.adds_up == again
    assert found.passes(allow_doubled=True)


def world(tmp_path: Path) -> World:
    """A small one: 4 of 12 records came out, 3 were filtered, 2 skipped, 3 are letters."""
    first = ["out", "out", "filtered", "filtered", "skipped", "dead_lettered"]
    second = ["filtered", "skipped", "dead_lettered", "dead_lettered", "out", "out"]
    return World(tmp_path, [Batch(first), Batch(second)])


def account(flow: str, read: int, out: int, rows: int | None = None, **counts: int) -> Account:
    """An account of batch 0 of a flow that reads the source."""
    return Account(
        flow=flow,
        query_id=QUERY,
        batch_id=0,
        records_in=read,
        records_out=out,
        rows_out=out if rows is None else rows,
        stages={"price": dict.fromkeys(FACTS, 0) | counts},
        source=True,
    )


def behind(flow: str, rows: int) -> Account:
    """One of a flow that reads what another gave, and lets all through."""
    return replace(account(flow, rows, rows), source=False)


def booked(folder: Path, fates: list[str], *accounts: Account) -> World:
    """One batch, of which the ledger has these accounts."""
    made = World(folder, [Batch(fates)])
    shutil.rmtree(folder / "state")
    Accounts(made.state).store(accounts)
    return made


def wrong(found: Audit) -> dict[str, Verdict]:
    """The verdicts that are not fine."""
    return {name: verdict for name, verdict in verdicts(found).items() if not verdict.fine}


Change = Callable[[World], None]


def under_way(made: World) -> None:
    """A batch that is not committed has letters and rows already, and an account."""
    ahead = Account(flow="main", query_id=QUERY, batch_id=2, records_in=1, records_out=1)
    Accounts(made.state).store([ahead])
    store(made.path("dead"), [made.letter((0, 90), batch_id=2)])
    made.out += [(1, 91), (1, 91)]


def of_others(made: World) -> None:
    """Letters of another app lie in the same folder; those of an older flow are said."""
    store(made.path("dead"), [made.letter((0, 0), app="other")])
    store(made.path("dead"), [made.letter((0, 0), flow="older", query_id="another")])


def resolved_and_compacted(made: World) -> None:
    """A letter that is dealt with is a letter still."""
    from sparkguard.deadletters.compact import compact
    from sparkguard.deadletters.selection import Selection
    from sparkguard.deadletters.store import Store

    sink = FileSink(path=made.path("dead"))
    for _ in range(2):
        store(sink.path, [made.letter(place) for place in made.letters])
    with Store({"dead": sink}) as letters:
        assert letters.resolve(Selection(), "done") == len(made.letters)
    compact(sink)
    made.letters.clear()


def spark_file_sink(made: World) -> None:
    """Files that Spark's own log does not name are no output."""
    log = made.folder / "out" / "_spark_metadata"
    log.mkdir(parents=True)
    entry = json.dumps({"path": f"file://{made.folder}/out/part-0.parquet", "action": "add"})
    (log / "9.compact").write_text(f"v1\n{entry}\n")
    (log / "10").write_text("v1")
    (log / "8").write_text('v1\n{"path":"file:///gone.parquet","action":"add"}')
    write_places(made.folder / "out" / "part-1-uncommitted.parquet", made.out)


def hidden_column(made: World) -> None:
    """A plain sink writes the hidden column of `carry=sg.ORIGIN`, a job its unfinished files."""
    (made.folder / "out" / "_temporary").mkdir(parents=True)
    write_places(made.folder / "out" / "_temporary" / "part-9.parquet", made.out)
    rows = [
        {"_sparkguard": {"topic": "orders", "partition": part, "offset": at, "file": None}}
        for part, at in made.out
    ]
    schema = pa.schema(
        [
            (
                "_sparkguard",
                pa.struct(
                    [
                        ("topic", pa.string()),
                        ("partition", pa.int32()),
                        ("offset", pa.int64()),
                        ("file", pa.string()),
                    ]
                ),
            )
        ]
    )
    pq.write_table(pa.Table.from_pylist(rows, schema), made.folder / "out" / "part-2.parquet")
    made.out.clear()


@pytest.mark.parametrize(
    "change",
    [under_way, of_others, resolved_and_compacted, spark_file_sink, hidden_column],
    ids=lambda change: change.__name__,
)
def test_still_adds_up(tmp_path: Path, change: Change) -> None:
    """What is right in other ways is right."""
    made = world(tmp_path)
    change(made)
    found = made.audit()
    assert [check for check in found.checks if not check.verdict.fine] == []


def broken_file(made: World) -> None:
    """A letter file that is no Parquet."""
    place = made.folder / "dead" / "date=2024-01-01"
    place.mkdir(parents=True)
    (place / "broken.parquet").write_bytes(b"PAR1 and no more")


def broken_output(made: World) -> None:
    """An output file that is no Parquet."""
    (made.folder / "out").mkdir()
    (made.folder / "out" / "broken.parquet").write_bytes(b"PAR1 and no more")


def committed_and_gone(made: World) -> None:
    """A file that Spark has committed and somebody has deleted."""
    spark_file_sink(made)
    entry = json.dumps({"path": "file:///x/gone.parquet", "action": "add"})
    (made.folder / "out" / "_spark_metadata" / "11").write_text(f"v1\n{entry}")


def start_forgotten(made: World) -> None:
    """A checkpoint that does not say where its source began."""
    (made.folder / "checkpoint" / "sources" / "0" / "0").unlink()


def nobody_s(made: World) -> None:
    """A letter that does not say of which app it is."""
    store(made.path("dead"), [made.letter((0, 0), app="", flow="")])


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (broken_file, "reading"),
        (broken_output, "reading"),
        (committed_and_gone, "reading"),
        (start_forgotten, "source"),
        (nobody_s, "letters"),
    ],
    ids=lambda it: getattr(it, "__name__", it),
)
def test_not_known(tmp_path: Path, change: Change, kind: str) -> None:
    """What cannot be read is said, and never passes silently."""
    made = world(tmp_path)
    change(made)
    found = made.audit()
    (check,) = (check for check in found.checks if check.verdict is Verdict.UNKNOWN)
    assert (check.kind, found.adds_up, bool(check.why)) == (kind, False, True)


def test_holes(tmp_path: Path) -> None:
    """Offsets that compaction has emptied are missing, unless it is said that there are some."""
    made = world(tmp_path)
    checkpoint = tmp_path / "checkpoint" / "offsets" / "1"
    checkpoint.write_text(checkpoint.read_text().replace('"0":6', '"0":8'))
    found = made.audit()
    assert one(found, "source", made.path("checkpoint")).verdict is Verdict.MISSING
    assert places_in(one(found, "places", "missing")) >= {(0, 6), (0, 7)}
    assert made.audit(holes=True).adds_up


def test_late_batch(tmp_path: Path) -> None:
    """P4: a committed batch without an account has lost its counts, and nothing else."""
    made = world(tmp_path)
    document = made.state.load(f"ledger/main.{QUERY}")
    del document["recent"]["1"]
    made.state.store(f"ledger/main.{QUERY}", document)
    found = made.audit()
    assert found.adds_up
    source = one(found, "source", made.path("checkpoint"))
    assert (source.verdict, source.expected, source.found) == (Verdict.LOST, 12, 6)
    assert one(found, "letters", "main.price").verdict is Verdict.LOST
    assert one(found, "places", "missing").verdict is Verdict.LOST


def test_batches_that_are_named(tmp_path: Path) -> None:
    """What is too much to have lost its counts is looked for in the other batches."""
    made = World(tmp_path, [Batch(["filtered", "out"], lost=True), Batch(["out"] * 6)])
    del made.out[2:5]
    check = one(made.audit(), "places", "missing")
    assert (check.verdict, check.found) == (Verdict.MISSING, 4)
    assert check.why.endswith("in batch 1 (3, 0 of them on purpose)")


def test_put_off(tmp_path: Path) -> None:
    """P1: a record that was put off lies in the retry topic, or nobody knows where it is."""
    made = World(tmp_path, [Batch(["out"] * 8 + ["delayed"] * 2)])
    check = one(made.audit(), "delayed", "main.price")
    assert (check.verdict, check.expected, check.found) == (Verdict.OK, 2, 2)
    shutil.rmtree(tmp_path / "dead")
    del made.delayed[0]
    found = made.audit()
    check = one(found, "delayed", "main.price")
    assert (check.verdict, check.found, found.adds_up) == (Verdict.UNKNOWN, 1, False)
    assert "retention" in check.why


@pytest.mark.parametrize("kept", ["letters", "out"])
def test_lost_counts_hide_nothing(tmp_path: Path, kept: str) -> None:
    """P1, P4: what lost its counts is no excuse for another batch that lacks something."""
    fates = ["dead_lettered"] * 5 + ["out"] * 5
    made = World(tmp_path, [Batch(fates), Batch(fates, lost=True), Batch(["out"])])
    assert made.audit().adds_up
    shutil.rmtree(tmp_path / "dead")
    gone = [place for place in getattr(made, kept) if made.batch_of[place] == 0]
    setattr(made, kept, [place for place in getattr(made, kept) if place not in gone])
    check = one(found := made.audit(), "places", "missing")
    assert check.verdict is Verdict.MISSING
    assert places_in(check) == {*gone}
    letters = one(found, "letters", "main.price")
    assert letters.verdict is (Verdict.MISSING if kept == "letters" else Verdict.LOST)


def test_rows_of_lost_counts(tmp_path: Path) -> None:
    """P1: as many rows as were counted are not right where some more were not counted."""
    made = World(tmp_path, [Batch(["out"] * 3), Batch(["out"] * 3, lost=True)])
    del made.out[:3]
    check = one(made.audit(), "output", "rows")
    assert (check.verdict, check.expected, check.found) == (Verdict.LOST, 3, 3)


def test_batches_that_make_up_for_each_other(tmp_path: Path) -> None:
    """P1: a filtered record that came out does not stand for one that is lost."""
    made = World(tmp_path, [Batch(["out"] * 2), Batch(["filtered"])])
    made.out = [made.out[0], *made.at("filtered")]
    check = one(made.audit(), "places", "missing")
    assert (check.verdict, places_in(check)) == (Verdict.MISSING, {*made.at("out")} - {*made.out})


def test_elements(tmp_path: Path) -> None:
    """P1: elements of a partial flat_map have letters of their own, and all must be there."""
    made = booked(tmp_path, ["out"] * 4, account("main", 4, 4, elements=3, extra_letters=2))
    places = [(0, 0), (1, 0)]
    store(made.path("dead"), [made.letter(one, path="price[1]") for one in places[:1]])
    check = one(made.audit(), "letters", "main.price")
    assert (check.verdict, check.expected, check.found) == (Verdict.MISSING, 2, 1)
    store(made.path("dead"), [made.letter(one, path="price[1]") for one in places[1:]])
    assert made.audit().adds_up


BRANCHES = {
    "each filters what the other keeps": [
        account("a", 10, 5, filtered=5),
        account("b", 10, 5, filtered=5),
    ],
    "all of it twice": [account("a", 10, 10), account("b", 10, 10)],
    "two behind one": [account("a", 10, 10), behind("b", 10), behind("c", 10)],
}


@pytest.mark.parametrize("accounts", BRANCHES.values(), ids=BRANCHES)
def test_branches(tmp_path: Path, accounts: list[Account]) -> None:
    """P1: how many rows branches of one source should give is not known, and is said so."""
    made = booked(tmp_path, ["out"] * 10, *accounts)
    for _ in range(2):
        found = made.audit()
        assert one(found, "source", made.path("checkpoint")).verdict is Verdict.OK
        assert one(found, "output", "rows").verdict is Verdict.UNKNOWN
        assert {Verdict.MISSING, Verdict.DOUBLED}.isdisjoint(verdicts(found).values())
        made.out.clear()
    assert one(made.audit(flows=["a"]), "output", "rows").verdict is Verdict.MISSING


WELL = {
    "two flows side by side, and a third behind them": (
        ["out"] * 15 + ["filtered"] * 5,
        [account("a", 10, 5, filtered=5), account("b", 10, 10), behind("p", 15)],
    ),
    "behind a flat_map": (["out"] * 10, [account("a", 10, 10, rows=30), behind("p", 30)]),
    "three in a row": (
        ["out"] * 7 + ["filtered"] * 3,
        [
            account("a", 10, 8, filtered=2),
            replace(account("b", 8, 7, filtered=1), source=False),
            behind("p", 7),
        ],
    ),
}


@pytest.mark.parametrize(("fates", "accounts"), WELL.values(), ids=WELL)
def test_chains(tmp_path: Path, fates: list[str], accounts: list[Account]) -> None:
    """P1: flows behind others are held against these; which is asked for changes no source."""
    made = booked(tmp_path, fates, *accounts)
    made.out *= accounts[0].rows_out // accounts[0].records_out
    assert wrong(made.audit()) == {}
    assert wrong(made.audit(flows=["p"])) == {}
    made.out.pop()
    assert wrong(made.audit(flows=["p"]))["output rows"] is Verdict.MISSING


def test_without_a_checkpoint(tmp_path: Path) -> None:
    """Nobody knows whether two flows share the source, and what is not looked at is said."""
    made = booked(tmp_path, ["out"] * 20, account("a", 12, 12), account("b", 8, 8))
    assert wrong(made.audit()) == {}
    found = made.audit(checkpoints=[])
    assert wrong(found) == {"output rows": Verdict.UNKNOWN}
    assert one(found, "places", "missing").verdict is Verdict.UNCHECKED


def test_two_queries_over_one_topic(tmp_path: Path) -> None:
    """Their places cannot be told from each other, and that is said."""
    made = World(tmp_path, [Batch(["out"] * 10)])
    other = Written(tmp_path / "other", "another-query")
    other.source(0, {"orders": {"0": 0, "1": 0}})
    other.batch(0, {"orders": {"0": 5, "1": 5}})
    Accounts(made.state).store([replace(account("second", 10, 10), query_id="another-query")])
    made.out *= 2
    found = made.audit(checkpoints=[made.path("checkpoint"), made.path("other")])
    assert wrong(found) == {"places doubled": Verdict.UNKNOWN}
    check = one(found, "places", "missing")
    assert (check.verdict, check.why) == (Verdict.UNCHECKED, "one partition was read twice")


@pytest.mark.parametrize("line", [b"{bad json", b'{"action":"add"}', b"[]", b'"x"', b"\xff"])
def test_damaged_log(tmp_path: Path, line: bytes) -> None:
    """A log of Spark's file sink that cannot be read is a sentence; other files are passed over."""
    made = world(tmp_path)
    spark_file_sink(made)
    log = tmp_path / "out" / "_spark_metadata"
    (log / "0abc").write_bytes(line)
    assert made.audit().adds_up
    (log / "11").write_bytes(b"v1\n" + line + b"\n")
    with pytest.raises(LettersError, match="is no log of Spark's file sink"):
        made.audit()


def test_batch_function(tmp_path: Path) -> None:
    """Letters of a batch function are held against its own account."""
    made = world(tmp_path)
    set_aside = made.out.pop()
    counts = {**dict.fromkeys(FACTS, 0), "entered": 2, "dead_lettered": 1}
    own = Account(
        flow="store",
        query_id=QUERY,
        batch_id=1,
        records_in=2,
        records_out=1,
        rows_out=1,
        stages={"store": counts},
        own=True,
    )
    Accounts(made.state).store([own])
    assert one(made.audit(), "letters", "store.store").verdict is Verdict.MISSING
    letter = made.letter(set_aside, flow="", stage="store", batch_id=1)
    store(made.path("dead"), [letter])
    assert made.audit().adds_up
    Accounts(made.state).drop("store", QUERY, 1)
    assert one(made.audit(), "letters", "store.store").verdict is Verdict.DOUBLED


def test_produce_behind_a_flow(tmp_path: Path) -> None:
    """What a produce stage sets aside comes out of its flow, and not of the pipeline."""
    made = world(tmp_path)
    refused = made.out.pop()
    counts = {**dict.fromkeys(FACTS, 0), "entered": 4, "dead_lettered": 1}
    known: dict[str, Any] = {"records_in": 4, "records_out": 3, "rows_out": 3}
    sent = Account(flow="send", query_id=QUERY, batch_id=1, stages={"send": counts}, **known)
    Accounts(made.state).store([sent])
    # A row tells no coordinates where its flow has not carried them.
    letter = made.letter(refused, flow="send", stage="send")
    bare = replace(letter.failure, record=Record(value=b"{}"))
    store(made.path("dead"), [replace(letter, failure=bare)])
    found = made.audit()
    assert found.adds_up
    assert one(found, "places", "missing").expected == 3 + 2 + 1
    made.letters.clear()
    shutil.rmtree(tmp_path / "dead")
    only = made.audit(flows=["send"], checkpoints=[])
    assert one(only, "output", "rows").verdict is Verdict.OK
    assert one(only, "letters", "send.send").verdict is Verdict.MISSING


def test_flows_side_by_side(tmp_path: Path) -> None:
    """Flows that share the source among them are held against it together."""
    made = world(tmp_path)
    name = f"ledger/main.{QUERY}"
    document = made.state.load(name)
    half = document["recent"].pop("1")
    made.state.store(name, document)
    made.state.store(
        f"ledger/other.{QUERY}", {"older": None, "recent": {"1": half | {"flow": "other"}}}
    )
    made._write_letters()
    others = [made.letter(place, flow="other") for place in made.letters if made.batch_of[place]]
    shutil.rmtree(tmp_path / "dead")
    store(made.path("dead"), others)
    made.letters = [place for place in made.letters if not made.batch_of[place]]
    assert made.audit().adds_up


def test_flat_map(tmp_path: Path) -> None:
    """Where a record makes several rows, rows are counted and their places are no copies."""
    made = world(tmp_path)
    name = f"ledger/main.{QUERY}"
    document = made.state.load(name)
    document["recent"]["1"]["rows_out"] += 1
    made.state.store(name, document)
    made.out.append(made.out[-1])
    found = made.audit()
    assert found.adds_up
    assert one(found, "places", "missing").verdict is Verdict.UNCHECKED
    made.out.pop()
    assert one(made.audit(), "output", "rows").verdict is Verdict.MISSING


def test_no_coordinates(tmp_path: Path) -> None:
    """Rows that carry none are counted; where some do, the others are in the way."""
    made = world(tmp_path)
    places, made.out = made.out, []
    (tmp_path / "out").mkdir()
    plain = pa.table({"total": [1.0] * len(places)})
    pq.write_table(plain, tmp_path / "out" / "plain.parquet")
    found = made.audit()
    assert found.adds_up
    assert one(found, "places", "output").verdict is Verdict.UNCHECKED
    pq.write_table(plain.slice(1), tmp_path / "out" / "plain.parquet")
    made.out = places[:1]
    found = made.audit()
    assert not found.adds_up
    assert one(found, "output", "rows").verdict is Verdict.OK
    assert one(found, "places", "missing").verdict is Verdict.UNKNOWN


def test_wrongly_asked(tmp_path: Path) -> None:
    """What is not there is a sentence."""
    made = world(tmp_path)
    other = Written(tmp_path / "other", "another-query")
    for asked, sentence in (
        ({"checkpoints": [made.path("nowhere")]}, "There is no checkpoint"),
        ({"checkpoints": [str(other.folder)]}, "No batch is committed"),
        ({"outputs": [made.path("nowhere")]}, "There is nothing at"),
    ):
        with pytest.raises(LettersError, match=sentence):
            made.audit(**asked)
    other.batch(0, {"orders": {"0": 1}})
    with pytest.raises(LettersError, match="no account of the query"):
        made.audit(checkpoints=[str(other.folder)])
    with pytest.raises(UnknownNameError, match="Did you mean 'main'"):
        made.audit(flows=["mian"])
    (tmp_path / "out" / "_delta_log").mkdir()
    with pytest.raises(LettersError, match="Delta"):
        made.audit()
    with pytest.raises(LettersError, match="no account of the app"):
        audit("app", Ledger(State(made.path("empty"))), {}, Asked())
