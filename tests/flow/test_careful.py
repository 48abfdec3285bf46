"""Careful mode: the functions run in a child, and only the record that ends it leaves."""

import ctypes
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import pyarrow as pa
import pytest

import sparkguard as sg
from sparkguard.core.ledger import Account, Entry, merge
from sparkguard.core.policy import Budget, Policy, Retry
from sparkguard.executor import child, flow_pass
from sparkguard.executor.plan import Layout, Plan
from sparkguard.executor.task import Task
from sparkguard.handlers.dead_letter import DeadLetterHandler
from sparkguard.handlers.fail import FailHandler
from sparkguard.sinks.base import SinkTask
from sparkguard.sinks.file import FileSink
from sparkguard.stages.base import Stage
from tests.flow.made import ManualTask, plan, policy, records

CRASH = "sparkguard.errors.WorkerCrashError"
LETTERS = policy(on_crash=DeadLetterHandler())


class Order(msgspec.Struct):
    id: int
    do: str = ""


def act(order: Order) -> None:
    """Do what the record says."""
    match order.do:
        case "segfault":
            ctypes.string_at(0)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "exit":
            os._exit(3)
        case "bad":
            raise ValueError(f"order {order.id} is bad")
        case "outage":
            raise ConnectionError("the service is down")
        case _:
            pass


decode = sg.deserialize(sg.Json(Order), name="decode")


@sg.map
def price(order: Order) -> int:
    """One for one."""
    act(order)
    return order.id


@sg.flat_map
def split(order: Order) -> Iterator[Order]:
    """None, one or two for one."""
    for n in range(order.id % 3):
        act(order)
        yield Order(order.id * 10 + n)


@sg.filter
def even(order: Order) -> bool:
    """Every second."""
    act(order)
    return order.id % 2 == 0


@sg.map_batches(returns="id long")
def score(batch: pa.RecordBatch) -> pa.RecordBatch:
    """All at once."""
    for row in batch.to_pylist():
        act(Order(row["id"], row["do"]))
    return batch.select(["id"])


def values(count: int, **does: list[int]) -> list[bytes]:
    """So many orders, of which some do something."""
    do = {n: what for what, numbers in does.items() for n in numbers}
    return [msgspec.json.encode(Order(n, do.get(n, ""))) for n in range(count)]


class Case:
    """A flow whose letters go to files, for they are written by another process."""

    def __init__(
        self, folder: Path, *stages: Stage[Any, Any], like: Policy = LETTERS, **changes: Any
    ) -> None:
        self._folder = folder
        chosen = {stage.name: like for stage in stages}
        sinks = {"default": FileSink(path=str(folder))}
        self.plan: Plan = plan(*stages, policies=chosen, sinks=sinks, **changes)
        self.rows: list[Any] = []
        self.account: Account | None = None

    def run(self, *batches: pa.RecordBatch, **task: Any) -> "Case":
        entries: list[Entry] = []
        facts = {"careful": True, **task}
        for out in flow_pass.run(self.plan, entries.append, batches, ManualTask(**facts)):
            self.rows += out.to_pylist()
        (self.account,) = merge(entries)
        return self

    @property
    def letters(self) -> dict[str, tuple[Any, ...]]:
        """By id: offset, stage, cause, exception, message, trace, value."""
        if not list(self._folder.glob("**/*.parquet")):
            return {}
        query = (
            'select distinct id, "offset", stage, cause, exception_type, message, trace, value '
            f"from '{self._folder}/**/*.parquet' order by 2"
        )
        return {row[0]: row[1:] for row in duckdb.execute(query).fetchall()}

    def left(self) -> dict[int, tuple[str, str]]:
        """By offset: stage and exception of the letter."""
        return {row[0]: (row[1], row[3]) for row in self.letters.values()}

    def count(self, stage: str) -> dict[str, int]:
        """The stage's facts that are not zero."""
        assert self.account is not None
        assert self.account.balanced
        return {fact: count for fact, count in self.account.stages[stage].items() if count}


def children() -> set[str]:
    """The processes that this one has forked and that have not ended."""
    return set(Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split())


@pytest.fixture(autouse=True)
def _no_child_left() -> Iterator[None]:
    """However a pass ends, its children have ended."""
    before = children()
    yield
    assert children() <= before


def test_killers_are_letters(tmp_path: Path) -> None:
    """P1, P3, P4, P6: each way to end a process, in two batches; every other record is there."""
    does = {"segfault": [7, 8], "kill": [0, 41], "exit": [99, 60], "bad": [5, 50]}
    lines = values(100, **does)
    case = Case(tmp_path, decode, price)

    case.run(records(lines[:60]), records(lines[60:], first=60))

    killers = {n for what, numbers in does.items() if what != "bad" for n in numbers}
    assert [row["value"] for row in case.rows] == [
        n for n in range(100) if n not in {5, 50} | killers
    ]
    assert case.left() == {
        **dict.fromkeys(killers, ("price", CRASH)),
        **dict.fromkeys((5, 50), ("price", "ValueError")),
    }
    found = {row[0]: row for row in case.letters.values()}
    assert all(found[n][2] == "fatal" and found[n][6] == lines[n] for n in killers)
    assert "killed by SIGSEGV" in found[7][4]
    assert "in act" in found[7][5]
    assert "killed by SIGKILL" in found[0][4]
    assert "exited with code 3" in found[99][4]
    assert case.count("price") == {"entered": 100, "dead_lettered": 8, "failed_attempts": 8}


def test_as_without_care(tmp_path: Path) -> None:
    """P3, P4: where nothing dies, output, ids and entry are those of an ordinary pass."""
    lines = values(50, bad=[3, 30])
    ran = [
        Case(tmp_path / str(careful), decode, price).run(records(lines), careful=careful)
        for careful in (False, True)
    ]

    assert ran[0].rows == ran[1].rows
    assert ran[0].letters.keys() == ran[1].letters.keys()
    assert ran[0].account == ran[1].account


@pytest.mark.parametrize("where", ["first", "second"])
def test_unsaid_the_task_fails(tmp_path: Path, where: str) -> None:
    """P1: the default handler fails the stage, with the record's coordinates."""
    case = Case(tmp_path, decode, price, like=policy(on_crash=FailHandler()))
    lines = values(40, exit=[9 if where == "first" else 33])

    with pytest.raises(sg.StageFailedError, match="exited with code 3") as raised:
        case.run(records(lines[:20]), records(lines[20:], first=20))

    facts = raised.value.facts
    assert (facts["stage"], facts["cause"], facts["topic"]) == ("price", "fatal", "orders")
    assert facts["offset"] == (9 if where == "first" else 33)
    assert not case.letters


def test_what_ends_a_task_ends_it_here_too(tmp_path: Path) -> None:
    """P13: an outcome that fails is raised as without care, with what it was raised from."""
    like = policy(FailHandler())
    told = []
    for careful in (False, True):
        case = Case(tmp_path / str(careful), decode, price, like=like)
        with pytest.raises(sg.StageFailedError) as raised:
            case.run(records(values(9, bad=[4])), careful=careful)
        told.append((str(raised.value), raised.value.facts))
        assert "order 4 is bad" in str(raised.value.__cause__)

    assert told[0] == told[1]


def test_a_stop_while_it_waits(tmp_path: Path) -> None:
    """P7, P12: a child that waits to try again sees the stop, and the task ends as stopped."""
    marker = tmp_path / "stop"
    marker.touch()
    case = Case(tmp_path, decode, price, like=policy(retry=Retry(initial=60.0, maximum=60.0)))
    task = Task(careful=True, stop_marker=str(marker))

    with pytest.raises(sg.StageFailedError) as raised:
        list(flow_pass.run(case.plan, None, [records(values(3, outage=[1]))], task))

    assert raised.value.action == "stop"


def test_an_early_end(tmp_path: Path) -> None:
    """P11: after `first()` the letters of the batches so far are stored, and no child is left."""
    case = Case(tmp_path, decode, price)
    batches = [records(values(3, bad=[1])), records(values(3, bad=[1]), first=3)]
    entries: list[Entry] = []
    passing = flow_pass.run(case.plan, entries.append, batches, ManualTask(careful=True))

    next(passing)
    passing.close()  # type: ignore[attr-defined]

    assert case.left() == {1: ("price", "ValueError")}
    assert not entries


@pytest.mark.parametrize(
    ("stages", "out", "killers"),
    [
        ((decode, split, even), 24, {4, 13}),
        ((decode, even, price), 18, {4, 13, 30}),
        ((decode, score), 37, {4, 13, 30}),
    ],
    ids=["flat_map", "filter", "map_batches"],
)
def test_stages(
    tmp_path: Path, stages: tuple[Stage[Any, Any], ...], out: int, killers: set[int]
) -> None:
    """P4, P6: whatever kind of stage a record ends, it leaves alone, and the counts add up."""
    case = Case(tmp_path, *stages).run(records(values(40, exit=[4, 13, 30])))

    assert len(case.rows) == out
    assert case.left() == dict.fromkeys(killers, (stages[1].name, CRASH))
    assert case.count(stages[1].name)["dead_lettered"] == len(killers)


def test_rows(tmp_path: Path) -> None:
    """P6: rows of columns, which have no coordinates, are found by halving."""
    rows = [{"id": n, "do": "exit" if n in {4, 13, 30} else ""} for n in range(40)]
    case = Case(tmp_path, score, layout=Layout(others=(("id", 0), ("do", 1)), rows=2))

    case.run(pa.RecordBatch.from_pylist(rows))

    assert [row["id"] for row in case.rows] == [n for n in range(40) if n not in {4, 13, 30}]
    assert len(case.letters) == 3


@pytest.mark.parametrize("size", [100, 1])
def test_memory_that_adds_up(tmp_path: Path, size: int) -> None:
    """P6: a process that dies of many records together dies of none of them."""
    met: list[int] = []

    @sg.map(name="price")
    def tired(order: Order) -> int:
        met.append(order.id)
        if len(met) > 30:
            os._exit(9)
        return order.id

    lines = values(100)
    batches = [records(lines[n : n + size], first=n) for n in range(0, 100, size)]

    case = Case(tmp_path, decode, tired).run(*batches)

    assert [row["value"] for row in case.rows] == list(range(100))
    assert not case.letters


def test_the_budget_counts_killers(tmp_path: Path) -> None:
    """P5: over the budget the stage stops, however many children it took."""
    like = policy(on_crash=DeadLetterHandler(), budget=Budget(max_ratio=0.1, window=50))
    case = Case(tmp_path, decode, price, like=like)

    with pytest.raises(sg.StageFailedError, match=r"its budget is 0\.1 of 50") as raised:
        case.run(records(values(50, exit=list(range(0, 50, 5)))))

    assert raised.value.action == "fail"
    assert len(case.letters) == 5


def test_equal_lines_keep_their_numbers(tmp_path: Path) -> None:
    """P3: without offsets the n-th equal record has its id, also behind one that ended a child."""
    rows = [b"{", b'{"id": 1, "do": "exit"}', b"{", b'{"id": 1, "do": "exit"}', b"{"]
    batch = pa.RecordBatch.from_pylist([{"value": row, "file": "a"} for row in rows])

    case = Case(tmp_path, decode, price, layout=Layout(value=0, file=1, rows=2)).run(batch)

    assert len(case.letters) == 5


@dataclass(frozen=True)
class Doomed:
    """A format that ends the process in which its decoder is made."""

    type: Any = int

    def decoder(self) -> Any:
        os._exit(4)


def test_what_dies_outside_of_the_functions(tmp_path: Path) -> None:
    """A process that ends before any function is called is no record's fault: the task fails."""
    case = Case(tmp_path, sg.deserialize(Doomed(), name="decode"))

    with pytest.raises(sg.StageFailedError, match="outside of the stages' functions"):
        case.run(records(values(4)))

    assert not case.letters


@dataclass(frozen=True)
class DyingSink(FileSink):
    """A sink whose client ends the process when it is to acknowledge."""

    def open(self, task: SinkTask) -> Any:
        writer = super().open(task)
        writer.flush = lambda: os._exit(6)  # type: ignore[method-assign]
        return writer


def test_a_sink_that_ends_the_process(tmp_path: Path) -> None:
    """P2: a letter that no process lives to store fails the task; it is not the record's fault."""
    case = Case(tmp_path, decode, price, like=policy(on_crash=FailHandler()))
    case.plan = replace(case.plan, sinks={"default": DyingSink(path=str(tmp_path))})

    with pytest.raises(sg.StageFailedError, match="outside of the stages' functions"):
        case.run(records(values(4, bad=[2])))


class _Dies:
    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def write(self, letter: sg.Letter) -> None:
        os._exit(6)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


@dataclass(frozen=True)
class DiesWriting(FileSink):
    """Ends the process at its first letter."""

    def open(self, task: SinkTask) -> Any:
        return _Dies(super().open(task))


def test_a_sink_that_dies(tmp_path: Path) -> None:
    """P2: it is no record's fault, and none is dropped for it."""
    case = Case(tmp_path, decode, price)
    case.plan = replace(case.plan, sinks={"default": DiesWriting(path=str(tmp_path))})
    with pytest.raises(sg.StageFailedError, match="ended outside of the stages' functions"):
        case.run(records(values(6, bad=[2])))


def test_a_closed_stdout(tmp_path: Path) -> None:
    """Nothing above the fork runs in a child, whatever its functions have closed."""

    @sg.map
    def closes(order: Order) -> int:
        sys.stdout.close()
        return order.id

    pid = os.getpid()
    case = Case(tmp_path, decode, closes)
    try:
        assert len(case.run(records(values(4))).rows) == 4
    finally:
        if os.getpid() != pid:
            os.kill(pid, signal.SIGABRT)
            os._exit(1)


def test_no_clock_of_another_stage(tmp_path: Path) -> None:
    """P8: a stage without a timeout may take its time behind one that has one."""

    @sg.map
    def first(order: Order) -> Order:
        return order

    @sg.map
    def slow(order: Order) -> int:
        # Holds the interpreter: nobody could take the clock back meanwhile.
        ctypes.PyDLL(None).usleep(1_500_000 if order.id == 1 else 0)
        return order.id

    case = Case(tmp_path, decode, first, slow)
    like = {"decode": LETTERS, "slow": LETTERS, "first": replace(LETTERS, record_timeout=0.1)}
    sinks = {"default": FileSink(path=str(tmp_path))}
    case.plan = plan(decode, first, slow, policies=like, sinks=sinks)
    assert len(case.run(records(values(3))).rows) == 3


def test_few_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two children and one more for each record that ends one, also right at the beginning."""
    forks: list[int] = []
    fork = child._fork

    def counted() -> int:
        forks.append(1)
        return fork()

    monkeypatch.setattr(child, "_fork", counted)
    case = Case(tmp_path, decode, price)
    killers = [1, 7, 500, 900]
    case.run(records(values(1_000, kill=killers)))
    assert len(case.rows) == 1_000 - len(killers)
    assert len(forks) <= 3 * len(killers) + 1
