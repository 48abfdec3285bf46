from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sparkguard.core.ledger import Account
from sparkguard.core.policy import Budget
from sparkguard.driver.accounts import Accounts
from sparkguard.driver.breaches import Breaches
from sparkguard.driver.ledger import Ledger
from sparkguard.driver.listener import checkpoint_path, drain, find_lost, settle, settle_all
from sparkguard.driver.settle import Settler
from sparkguard.driver.state import State
from sparkguard.errors import StageFailedError
from sparkguard.executor.breach import look
from sparkguard.executor.task import Task
from sparkguard.hookspecs import Members
from sparkguard.testing.queries import FakeQuery
from tests.unit.driver.desks import Box, entry
from tests.unit.driver.test_checkpoint import Written


class Keeps(FakeQuery):
    """A query that says where its checkpoint is, as Spark's classic one does."""

    def __init__(self, root: str) -> None:
        super().__init__(query_id="q")
        execution = SimpleNamespace(resolvedCheckpointRoot=lambda: root)
        self._jsq = SimpleNamespace(streamingQuery=lambda: execution)


class Office:
    """The accounts of a query whose batches are reported after their commit."""

    def __init__(self, folder: Path) -> None:
        self.state = state = State(str(folder / "state"))
        self.box = Box()
        self.accounts = Accounts(state)
        self.accounts.listen(self.box)  # type: ignore[arg-type]
        self.settler = Settler("app", self.accounts, Members(), Breaches(state))
        self.settler.watch("orders", {"decode": Budget(max_ratio=0.1, window=10)})
        self.ledger = Ledger(state, self.accounts.pending)
        self.written = Written(folder / "checkpoint")
        self.query = Keeps(f"file:{self.written.folder}")

    def settled(self, *batches: int) -> None:
        """These batches have accounts."""
        for batch in batches:
            self.box.append(entry(10 * batch, 10 * batch + 9, batch_id=batch))
            self.settler.settle("q", batch, committed=True)

    def find(self) -> dict[int | None, tuple[int, bool]]:
        """Look for what is lost; the ledger afterwards."""
        find_lost(self.query, self.accounts, self.ledger)  # type: ignore[arg-type]
        return {
            one.batch_id: (one.records_in, one.counts_lost) for one in self.ledger.batches("orders")
        }


@pytest.fixture
def office(tmp_path: Path) -> Office:
    """The accounts of one query."""
    return Office(tmp_path)


def test_counts_lost(office: Office, caplog: pytest.LogCaptureFixture) -> None:
    """P4: a batch whose driver died after the commit is reported, with `in` from the offsets."""
    for batch in range(4):
        office.written.batch(batch, {"in": {"0": 10 * batch + 10}})
    office.settled(0, 1, 3)
    assert office.find() == {0: (10, False), 1: (10, False), 2: (10, True), 3: (10, False)}
    assert "sparkguard.counts_lost flow='orders' batch_id=2 records_in=10" in caplog.text
    caplog.clear()
    office.find()
    assert not caplog.text, "it is reported once"


def test_counts_lost_of_files(office: Office, caplog: pytest.LogCaptureFixture) -> None:
    """P4: a source that does not say how many records it read loses its counts all the same."""
    for batch in range(3):
        office.written.batch(batch, {"logOffset": batch})
    office.settled(0)
    assert office.find() == {0: (10, False), 1: (0, True), 2: (0, True)}
    assert "batch_id=2" in caplog.text


def test_nothing_lost(office: Office, caplog: pytest.LogCaptureFixture) -> None:
    """Batches without data, uncommitted ones, and those from before the ledger are not lost."""
    for batch, end in enumerate((10, 20, 20, 30)):
        office.written.batch(batch, {"in": {"0": end}}, committed=batch < 3)
    office.settled(1)
    assert office.find() == {1: (10, False)}
    assert not caplog.text


def test_own_accounts_miss_nothing(office: Office) -> None:
    """A batch function has an account for batches that failed only; the others are not lost."""
    for batch in range(4):
        office.written.batch(batch, {"in": {"0": 10 * batch + 10}})
    office.settled(0, 1, 2, 3)
    office.accounts.store([Account(flow="store", query_id="q", batch_id=1, own=True)])
    office.find()
    assert [one.batch_id for one in office.ledger.batches("store")] == [1]


def test_entries_on_their_way(office: Office) -> None:
    """P4: a batch of this very run, committed while we look, is not lost: its entries are here."""
    for batch in range(2):
        office.written.batch(batch, {"in": {"0": 10 * batch + 10}})
    office.settled(0)
    office.box.append(entry(10, 19, batch_id=1))
    assert office.find()[1] == (10, False)


def test_a_checkpoint_that_cannot_be_read(office: Office, caplog: pytest.LogCaptureFixture) -> None:
    """A filesystem that only Spark knows stops no query; it is said that nobody looked."""
    office.settled(0)
    office.query = Keeps("nobodyknows://bucket/checkpoint")
    assert office.find() == {0: (10, False)}
    assert "cannot be read" in caplog.text


def test_checkpoint_path() -> None:
    """Spark's form of a local path becomes ours; URIs stay; Spark Connect does not tell."""
    assert checkpoint_path(Keeps("file:/tmp/a b%20c")) == "/tmp/a b%20c"  # type: ignore[arg-type]
    assert checkpoint_path(Keeps("s3://b/c")) == "s3://b/c"  # type: ignore[arg-type]
    assert checkpoint_path(FakeQuery()) is None  # type: ignore[arg-type]


def progress(query: FakeQuery, batch_id: int = 0) -> Any:
    """What Spark reports of a batch."""
    return SimpleNamespace(id=query.id, runId=query.runId, batchId=batch_id, name="orders query")


def test_a_report_settles(office: Office) -> None:
    """P4: a batch that Spark reports is stored."""
    office.box.append(entry(0, 9))
    settle(office.settler, progress(office.query))
    assert Ledger(office.state).total("orders").records_in == 10
    assert office.settler.breaches.take(office.query.runId) is None


def test_one_guard_that_cannot_keeps_no_other(office: Office, tmp_path: Path) -> None:
    """P4: of several guards of a session each settles its own, whatever happens to another."""
    broken = Office(tmp_path / "broken")
    broken.box.append(entry(0, 9))
    (tmp_path / "broken" / "state").write_text("a file where the state should be")
    office.box.append(entry(0, 9))

    with pytest.raises(OSError, match="state"):
        settle_all([broken.settler, office.settler], progress(office.query))

    assert Ledger(office.state).total("orders").records_in == 10, "it is in the state"


def test_a_breach_after_the_commit(office: Office) -> None:
    """P5: it waits for the supervisor, once, and in the state for the query's next task."""
    office.box.append(entry(0, 9, dead=9))
    settle(office.settler, progress(office.query))
    task = Task(query_id=office.query.id, run_id=f"{office.query.runId}/0")

    with pytest.raises(StageFailedError, match="failed 9 of its last 10 records"):
        look(office.state.breaches, task)

    breach = office.settler.breaches.take(office.query.runId)
    assert breach is not None
    assert breach.facts["reason"] == "budget"
    assert office.settler.breaches.take(office.query.runId) is None


def test_a_breach_is_of_one_run(office: Office) -> None:
    """P5: a report that comes late does not fail the run that was started meanwhile."""
    office.box.append(entry(0, 9, dead=9))
    settle(office.settler, progress(office.query))

    others = (
        Task(query_id=office.query.id, run_id="another"),
        Task(query_id="another", run_id=office.query.runId),
        Task(),
    )
    assert not any(look(office.state.breaches, task) for task in others)
    with pytest.raises(StageFailedError):
        look(office.state.breaches, Task(query_id=office.query.id, run_id=office.query.runId))


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"run_id": 1}', "a folder"])
def test_a_breach_that_cannot_be_read(
    office: Office, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A state that cannot be read or understood stops no query; one that should be, is named."""
    place = Path(office.state.breaches) / "q.json"
    place.parent.mkdir(parents=True)
    if text == "a folder":
        place.mkdir()
    else:
        place.write_text(text)

    look(office.state.breaches, Task(query_id="q", run_id="r"))

    assert (str(place) in capsys.readouterr().err) == (text in ("", "[]", "a folder"))


def test_drain() -> None:
    """Spark's reports are waited for; a session that is gone is not."""
    asked: list[int] = []
    query = FakeQuery()
    drain(query)
    bus = SimpleNamespace(waitUntilEmpty=asked.append)
    context = SimpleNamespace(listenerBus=lambda: bus)
    session = SimpleNamespace(sparkContext=lambda: context)
    query._jsq = SimpleNamespace(sparkSession=lambda: session)  # type: ignore[attr-defined]
    drain(query)
    assert len(asked) == 1
    query._jsq = SimpleNamespace()  # type: ignore[attr-defined]
    drain(query)


def test_care_ends_with_a_commit(office: Office) -> None:
    """P14: the tasks of a query whose worker died are careful, until a batch is committed."""
    query, breaches = office.query, office.settler.breaches
    task = Task(query_id=query.id, run_id=query.runId)
    assert not look(office.state.breaches, task)

    assert not breaches.careful(query.id)
    assert breaches.careful(query.id)
    assert look(office.state.breaches, task)
    assert not look(office.state.breaches, Task(query_id="another", run_id="r"))
    settle(office.settler, progress(query))

    assert not look(office.state.breaches, task)
    assert not breaches.careful(query.id)


def test_care_of_another_process(office: Office) -> None:
    """P14: a note that an earlier process left is found and taken away as well."""
    office.state.store_breach(office.query.id, {"careful": True})

    settle(office.settler, progress(office.query))

    assert office.state.load(f"breaches/{office.query.id}") is None


def test_a_breach_is_no_care(office: Office) -> None:
    """P5: the commit that ends care leaves a breach alone."""
    office.box.append(entry(0, 9, dead=9))
    settle(office.settler, progress(office.query))
    settle(office.settler, progress(office.query, 1))

    with pytest.raises(StageFailedError):
        look(office.state.breaches, Task(query_id=office.query.id, run_id=office.query.runId))
