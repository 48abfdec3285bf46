"""What the tests of the driver's room share: a desk, a run, entries, policies."""

import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sparkguard.core.ledger import FACTS, Account, Entry, Span
from sparkguard.core.policy import Budget, Policy, Retry
from sparkguard.core.watch import Event
from sparkguard.driver.restarts import Limit, Restarts
from sparkguard.driver.run import Desk, Run
from sparkguard.driver.state import State
from sparkguard.driver.stop import Stop
from sparkguard.driver.supervisor import Supervisor
from sparkguard.errors import StageFailedError
from sparkguard.handlers.fail import FailHandler
from sparkguard.handlers.restart import RestartHandler
from sparkguard.testing.clock import ManualClock
from sparkguard.testing.queries import FakeQuery

OUTAGE = ConnectionError("the database is away")
POISON = ValueError("no such currency")

Built = Any


@dataclass
class Office:
    """One state, one stop, one clock, and everything that the watchers were told."""

    folder: Path
    clock: ManualClock = field(default_factory=ManualClock)
    told: list[Event] = field(default_factory=list)
    breaches: dict[str, StageFailedError] = field(default_factory=dict)
    started: Callable[[Any], None] = lambda _: None
    careful: Callable[[str], bool] = lambda _: True
    committed: list[tuple[str, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.state = State(str(self.folder / "state"))
        self.stop = Stop(self.state)

    def run(self, *built: Built, name: str = "build", limit: Limit | None = None) -> Run:
        """A run whose build gives these in turn: queries, or exceptions to raise."""
        return self.run_of(builder(built), name=name, limit=limit)

    def run_of(self, build: Any, *, name: str = "build", limit: Limit | None = None) -> Run:
        """A run of this build."""
        restarts = Restarts(self.state, name, limit or Limit(), self.clock, draw=lambda: 1.0)
        desk = Desk(
            app="orders",
            stop=self.stop,
            clock=self.clock,
            tell=self.told.append,
            started=self.started,
            committed=lambda *batch: self.committed.append(batch),
            breach=lambda run_id: self.breaches.pop(run_id, None),
            careful=self.careful,
            flows=lambda: {"flow": ("decode",)},
        )
        return Run(build, name, restarts, desk)

    def supervise(self, *runs: Run, grace: float = 60) -> None:
        """Supervise these until they end."""
        Supervisor(runs, self.stop, self.clock, grace=grace).run()

    def names_told(self) -> list[str]:
        """What happened, in order."""
        return [type(event).__name__ for event in self.told]


def builder(built: Iterable[Built]) -> Callable[[], Any]:
    """A build that gives these in turn."""
    left: Iterator[Built] = iter(built)

    def build() -> Any:
        given = next(left)
        if isinstance(given, BaseException):
            raise given
        return given

    return build


def failing(count: int, error: BaseException = OUTAGE) -> list[FakeQuery]:
    """Queries that end at the second look."""
    return [FakeQuery("rest", error) for _ in range(count)]


def stage_failed(action: str, cause: str = "poison") -> StageFailedError:
    """What a guarded stage raises."""
    facts = {"action": action, "stage": "price", "cause": cause, "topic": "in", "partition": 2}
    return StageFailedError("Stage 'price' failed.", {**facts, "offset": 7})


def as_spark_says_it(error: BaseException) -> RuntimeError:
    """The same in the middle of a long text, which is all that comes back from Spark."""
    trace = "".join(traceback.format_exception(error))
    if error.__traceback__ is None:
        trace = "Traceback (most recent call last):\n" + '  File "f.py", line 1\n' * 50 + trace
    return RuntimeError(
        "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: Job aborted due to "
        f"stage failure: org.apache.spark.api.python.PythonException: {trace}\n"
        "\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException("
        "PythonRunner.scala:581) SQLSTATE: XXKST"
    )


def entry(first: int, last: int, **changes: Any) -> Entry:
    """A task's entry over one range of offsets, of which `dead` records failed in `decode`."""
    dead, skipped = changes.pop("dead", 0), changes.pop("skipped", 0)
    flow, records = changes.pop("flow", "orders"), last - first + 1
    counts = dict.fromkeys(FACTS, 0)
    counts |= {"entered": records, "dead_lettered": dead, "skipped": skipped}
    facts: dict[str, Any] = {
        "flow": flow,
        "use": "use",
        "query_id": "q",
        "run_id": "r1",
        "batch_id": 0,
        "stage_id": 1,
        "spans": (Span(topic="in", partition=0, first=first, last=last),),
        "records_in": records,
        "records_out": records - dead - skipped,
        "stages": {"decode": counts},
    }
    return Entry(**{**facts, **changes})


class Box(list[Entry]):
    """A mailbox that tests put entries into."""

    def take(self) -> list[Entry]:
        """Every entry that came since the last call."""
        taken = list(self)
        self.clear()
        return taken


def totals(account: Account) -> tuple[int, int, int]:
    """In, out, dead-lettered."""
    return account.records_in, account.records_out, account.total("dead_lettered")


def policy(**changes: Any) -> Policy:
    """A policy that fails, and restarts for transient causes; retries wait for nothing."""
    facts: dict[str, Any] = {
        "handler": FailHandler(),
        "on_transient": RestartHandler(),
        "on_programming": FailHandler(),
        "on_fatal": FailHandler(),
        "retry": Retry(initial=0.0),
        "budget": Budget(),
    }
    return Policy(**{**facts, **changes})
