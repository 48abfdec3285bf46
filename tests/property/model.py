"""The simplest micro-batch engine: a log, an offset log, tasks that die, drivers that die."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from sparkguard.core.failure import Category
from sparkguard.core.ledger import Account, Entry
from sparkguard.core.policy import Policy
from sparkguard.driver.accounts import Accounts
from sparkguard.driver.batch import BatchFunction, BatchStage
from sparkguard.driver.breaches import Breaches
from sparkguard.driver.ledger import Ledger
from sparkguard.driver.settle import Settler
from sparkguard.driver.state import State
from sparkguard.driver.stop import Stop
from sparkguard.errors import StageFailedError
from sparkguard.executor import flow_pass
from sparkguard.executor.plan import Plan
from sparkguard.executor.task import TRY
from sparkguard.hookspecs import Members
from sparkguard.testing.clock import ManualClock
from tests.flow.made import ManualTask, records
from tests.unit.driver.desks import Box
from tests.unit.driver.frames import FakeFrame

QUERY = "q"
TASK_FAULTS = ("dies", "dies_stored", "early", "speculated")
BATCH_FAULTS = ("twice", "outage", "outage_written")
DRIVER_FAULTS = ("evaluated", "written", "accounts", "settled")
ATTEMPTS = 4


class Killed(BaseException):
    """A process is no more."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens to a batch, once: its `times`th evaluation or call, a task of its own."""

    batch: int
    kind: str
    partition: int = 0


class Log:
    """A topic: values by partition, read in equal steps."""

    def __init__(self, partitions: list[list[bytes | None]], step: int) -> None:
        self.partitions = partitions
        self.step = step

    @property
    def batches(self) -> int:
        """How many micro-batches it takes."""
        longest = max(map(len, self.partitions), default=0)
        return -(-longest // self.step)

    def part(self, partition: int, batch: int) -> tuple[int, list[bytes | None]]:
        """What one task of a batch reads: its first offset, and the values."""
        first = batch * self.step
        return first, self.partitions[partition][first : first + self.step]


@dataclass
class World:
    """What outlives every process: the log, the target, the commits, the state, the letters."""

    folder: Path
    log: Log
    plan: Plan
    policy: Policy
    faults: list[Fault]
    written: dict[int, list[Any]] = field(default_factory=dict)
    committed: int = 0
    runs: int = 0

    def happens(self, batch: int, kind: str, partition: int = 0) -> bool:
        """Whether this fault is due now; it comes no second time."""
        fault = Fault(batch, kind, partition)
        if fault not in self.faults:
            return False
        self.faults.remove(fault)
        return True

    @property
    def total(self) -> Account:
        """The ledger, as any process reads it."""
        return Ledger(State(str(self.folder))).total("flow")

    def run(self) -> StageFailedError | None:
        """Drivers one after the other, until all is committed or a stage fails for good."""
        while self.committed < self.log.batches:
            self.runs += 1
            try:
                Driver(self).run()
            except Killed:
                continue
            except StageFailedError as error:
                if isinstance(error.__cause__, Killed) or error.action == "restart":
                    continue
                return error
        return None


class Driver:
    """One process: it knows nothing but what is in the world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.box = Box()
        state = _DyingState(world)
        accounts = Accounts(state)
        accounts.listen(self.box)  # type: ignore[arg-type]
        self.settler = Settler("app", accounts, Members(), Breaches(state))
        self.clock = ManualClock()
        self.stages = 0
        stage = BatchStage(
            app="app",
            name="store",
            category=Category.PROCESSING,
            policy=world.policy,
            function=self._store,
            sinks={},
        )
        self._function = BatchFunction(stage, self.settler, Stop(state), clock=self.clock)

    def run(self) -> None:
        """Every batch that is not committed yet."""
        world = self.world
        while world.committed < world.log.batches:
            batch_id = world.committed
            self._function(_Frame(self, batch_id), batch_id)  # type: ignore[arg-type]
            if world.happens(batch_id, "settled"):
                raise Killed
            world.committed += 1

    def _store(self, frame: Any, batch_id: int) -> None:
        """The user's function: evaluates, and overwrites what it wrote for this batch before."""
        world = self.world
        if world.happens(batch_id, "twice"):
            frame.evaluate()
        if world.happens(batch_id, "outage"):
            raise ConnectionError("the target is away")
        rows = frame.evaluate()
        if world.happens(batch_id, "evaluated"):
            raise Killed
        world.written[batch_id] = rows
        if world.happens(batch_id, "outage_written"):
            raise ConnectionError("the target is away again")
        if world.happens(batch_id, "written"):
            raise Killed


class _DyingState(State):
    def __init__(self, world: World) -> None:
        super().__init__(str(world.folder))
        self._world = world

    def store(self, name: str, document: Any) -> None:
        if self._world.happens(self._world.committed, "accounts"):
            raise Killed
        super().store(name, document)


class _Frame(FakeFrame):
    """A batch: evaluating it runs a task a partition."""

    def __init__(self, driver: Driver, batch_id: int) -> None:
        super().__init__(clock=driver.clock, query_id=QUERY)
        self._driver = driver
        self._batch_id = batch_id
        self._properties: dict[str, Any] = {"sql.streaming.queryId": QUERY}

    @property
    def sparkSession(self) -> Any:  # noqa: N802 - the name is Spark's
        session = super().sparkSession
        session.sparkContext.getLocalProperty = self._properties.get
        session.sparkContext.setLocalProperty = self._properties.__setitem__
        return session

    def evaluate(self) -> list[Any]:
        """The rows of every task; counts of the attempts that won are in the box."""
        self._driver.stages += 1
        world, rows = self._driver.world, list[Any]()
        for partition in range(len(world.log.partitions)):
            rows += self._task(partition)
        return rows

    def _task(self, partition: int) -> list[Any]:
        world, batch = self._driver.world, self._batch_id
        won = None
        for attempt in range(ATTEMPTS):
            fault = next((f for f in TASK_FAULTS if world.happens(batch, f, partition)), "")
            try:
                won = self._attempt(partition, attempt, fault)
            except Killed:
                continue
            if fault == "speculated":
                # Its copy ends as well; Spark takes one result, and both may be heard of.
                self._attempt(partition, attempt + 1, "")
            if fault != "early":
                return won
        raise StageFailedError("A task died too often.", {"action": "restart"})

    def _attempt(self, partition: int, attempt: int, fault: str) -> list[Any]:
        driver, first_and_values = (
            self._driver,
            self._driver.world.log.part(partition, self._batch_id),
        )
        first, values = first_and_values
        task = ManualTask(
            query_id=QUERY,
            run_id=f"run-{driver.world.runs}/{self._properties.get(TRY)}",
            batch_id=self._batch_id,
            stage_id=driver.stages,
            partition=partition,
            attempt=attempt,
            task_attempt_id=driver.stages * 100 + partition * 10 + attempt,
        )
        entries: list[Entry] = []

        def count(entry: Entry) -> None:
            if fault == "dies_stored":
                raise Killed
            entries.append(entry)

        passing = flow_pass.run(
            driver.world.plan, count, _fed(first, values, partition, fault), task
        )
        rows: list[Any] = []
        for out in passing:
            rows += out.to_pylist()
            if fault == "early":
                passing.close()  # type: ignore[attr-defined]
                break
        driver.box.extend(entries)
        return rows


def _fed(
    first: int, values: list[bytes | None], partition: int, fault: str
) -> Iterator[pa.RecordBatch]:
    """The Arrow batches of a task, two records each."""
    for at in range(0, len(values), 2):
        if fault == "dies" and at:
            raise Killed
        yield records(values[at : at + 2], first=first + at, partition=partition)
    if fault == "dies":
        raise Killed
