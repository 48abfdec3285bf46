import pickle
import re
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sparkguard.core.failure import Category, Cause, Failure
from sparkguard.core.policy import Budget, Policy, Retry
from sparkguard.driver.accounts import Accounts
from sparkguard.driver.batch import BatchFunction, BatchStage
from sparkguard.driver.breaches import Breaches
from sparkguard.driver.ledger import Ledger
from sparkguard.driver.settle import Settler
from sparkguard.driver.state import State
from sparkguard.driver.stop import Stop, StoppedBatchError
from sparkguard.errors import StageFailedError
from sparkguard.executor.plan import ORIGIN_COLUMN
from sparkguard.handlers.fail import FailHandler
from sparkguard.handlers.log_and_continue import LogAndContinueHandler
from sparkguard.handlers.restart import RestartHandler
from sparkguard.hookspecs import Members
from sparkguard.testing.clock import ManualClock
from sparkguard.testing.queries import FakeQuery
from tests.unit.driver.desks import OUTAGE, POISON, Box, entry, policy, stage_failed
from tests.unit.driver.frames import FakeFrame, interrupted

PROXY_ERROR = re.compile(
    r"py4j.protocol.Py4JJavaError: An error occurred while calling((.|\r\n|\r|\n)*)"
    r"(java.lang.InterruptedException|java.io.InterruptedIOException"
    r"|java.nio.channels.ClosedByInterruptException)"
)
"""How Spark tells a stop from a failure."""


class Bench:
    """A guarded batch function over a state of its own; `acts` says what the user's does."""

    def __init__(self, folder: Path, chosen: Policy, *acts: BaseException | None) -> None:
        self.clock = ManualClock()
        self.state = State(str(folder))
        self.box = Box()
        self.accounts = Accounts(self.state)
        self.accounts.listen(self.box)  # type: ignore[arg-type]
        self.settler = Settler("app", self.accounts, Members(), Breaches(self.state))
        self.stop = Stop(self.state)
        self.ledger = Ledger(self.state)
        self.frame = FakeFrame(clock=self.clock)
        self.seen: list[Any] = []
        self.takes: Callable[[], None] = lambda: None
        self._acts = list(acts)
        stage = BatchStage(
            app="app",
            name="store",
            category=Category.PROCESSING,
            policy=chosen,
            function=self._user,
            sinks={},
        )
        self.function = BatchFunction(stage, self.settler, self.stop, clock=self.clock)

    def _user(self, batch: Any, batch_id: int) -> None:
        self.seen.append(batch)
        self.takes()
        act = self._acts.pop(0) if self._acts else None
        if act is not None:
            raise act

    def __call__(self, batch_id: int = 0) -> None:
        """Run one batch."""
        self.function(self.frame, batch_id)  # type: ignore[arg-type]

    def fails(self) -> StageFailedError:
        """Run one batch, which must fail."""
        with pytest.raises(StageFailedError) as caught:
            self()
        return caught.value


def test_a_good_batch(tmp_path: Path) -> None:
    """P4: the function is called once, and the accounts are in the state when it returns."""
    bench = Bench(tmp_path, policy())
    bench.takes = lambda: bench.box.append(entry(0, 9))
    bench()
    assert bench.seen == [bench.frame]
    assert bench.ledger.total("orders").records_in == 10
    assert bench.function.__name__ == "store"


def test_the_origin_is_hidden(tmp_path: Path) -> None:
    """The user's function does not see the column in which origins travel."""
    bench = Bench(tmp_path, policy())
    bench.frame.columns = ("id", ORIGIN_COLUMN)
    bench()
    assert bench.seen[0].columns == ("id",)


def test_retries_while_transient(tmp_path: Path) -> None:
    """P7: an outage is tried again until it has passed; the tries are counted apart (P19)."""
    bench = Bench(tmp_path, policy(), OUTAGE, OUTAGE, None)
    bench()
    assert len(bench.seen) == 3
    (account,) = bench.ledger.batches("store")
    assert (account.total("failed_attempts"), account.total("retries")) == (2, 2)
    assert account.records_in == 0


def test_poison_is_not_retried(tmp_path: Path) -> None:
    """P7: only a transient cause is tried again."""
    bench = Bench(tmp_path, policy(), POISON)
    error = bench.fails()
    assert len(bench.seen) == 1
    assert error.__cause__ is POISON
    facts = {"action": "fail", "stage": "store", "cause": "poison", "attempts": 1, "batch_id": 0}
    assert facts.items() <= error.facts.items()
    assert error.facts["exception_type"] == "ValueError"


def test_within_the_task_timeout(tmp_path: Path) -> None:
    """P8: attempts and waits together are bounded; the end is routed, not retried."""
    retry = Retry(initial=60.0, maximum=60.0)
    bench = Bench(tmp_path, policy(retry=retry, task_timeout=300.0), *[OUTAGE] * 999)
    bench.takes = lambda: bench.clock.advance(40)
    start = bench.clock.time()
    error = bench.fails()
    assert (error.action, error.facts["cause"]) == ("restart", "transient")
    took = bench.clock.time() - start
    assert 300 <= took <= 40 + 300 + 40, "the clock starts at the end of the first failure"
    assert error.facts["attempts"] == len(bench.seen)


def test_timed_out_is_told(tmp_path: Path) -> None:
    """P8: the handler learns that it was the time that ran out."""
    asked: list[Failure] = []

    class Asks(FailHandler):
        def decide(self, failure: Failure) -> Any:
            asked.append(failure)
            return super().decide(failure)

    bench = Bench(tmp_path, policy(on_transient=Asks(), task_timeout=10.0), *[OUTAGE] * 99)
    bench.takes = lambda: bench.clock.advance(6)
    bench.fails()
    bench = Bench(
        tmp_path, policy(on_transient=Asks(), retry=Retry(max_attempts=2)), OUTAGE, OUTAGE
    )
    bench.fails()
    assert [(one.timed_out, one.attempts) for one in asked] == [(True, 3), (False, 2)]
    assert asked[1].first_failed_at is not None
    assert asked[1].last_failed_at is not None
    assert asked[1].first_failed_at <= asked[1].last_failed_at


def test_waits_are_hinted(tmp_path: Path) -> None:
    """P7: the other side's Retry-After is heeded, within the task timeout."""
    busy = ConnectionError("busy")
    busy.retry_after = 7  # type: ignore[attr-defined]
    bench = Bench(tmp_path, policy(), busy, None)
    bench()
    assert sum(bench.frame.slept) == 7000
    busy.retry_after = 9999  # type: ignore[attr-defined]
    bench = Bench(tmp_path, policy(task_timeout=20.0), busy, None)
    bench()
    assert sum(bench.frame.slept) == 20_000


@pytest.mark.parametrize("error", [SystemExit(0), KeyboardInterrupt(), GeneratorExit()])
def test_no_ordinary_exception(tmp_path: Path, error: BaseException) -> None:
    """P11: what would hang the query for ever becomes a failure with cause `fatal`."""
    raised = Bench(tmp_path, policy(), error).fails()
    assert (raised.action, raised.facts["cause"]) == ("fail", "fatal")
    assert raised.__cause__ is error


def test_no_ordinary_exception_in_our_own_code(tmp_path: Path) -> None:
    """P11: nothing but an exception leaves the batch, even if it came from a watcher's side."""
    bench = Bench(tmp_path, policy())

    def interrupts(*_: Any) -> None:
        raise KeyboardInterrupt

    bench.settler.settle = interrupts  # type: ignore[assignment,method-assign]
    raised = bench.fails()
    assert raised.facts["cause"] == "fatal"


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def test_an_exception_without_a_text(tmp_path: Path) -> None:
    """P17: an exception that cannot be printed is a failure like any other, and py4j prints it."""
    raised = Bench(tmp_path, policy(), UnprintableError()).fails()
    assert "UnprintableError" in str(raised)
    assert "".join(traceback.format_exception(raised))


def test_on_transient(tmp_path: Path) -> None:
    """P9: when the retries are used up, the settings decide; the default is a restart."""
    retry = Retry(max_attempts=1)
    assert Bench(tmp_path, policy(retry=retry), OUTAGE).fails().action == "restart"
    chosen = policy(retry=retry, on_transient=FailHandler())
    assert Bench(tmp_path, chosen, OUTAGE).fails().action == "fail"


def test_by_exception(tmp_path: Path) -> None:
    """The order of routing is the one of every stage: cause first, then exception."""
    chosen = policy(by_exception=(("ValueError", RestartHandler()),))
    assert Bench(tmp_path, chosen, POISON).fails().action == "restart"
    chosen = policy(classify=(("ValueError", Cause.PROGRAMMING),), by_exception=chosen.by_exception)
    assert Bench(tmp_path, chosen, POISON).fails().action == "fail"


def test_a_handler_that_breaks(tmp_path: Path) -> None:
    """P13: a handler that raises fails the query, the first error kept as its cause."""

    class Breaks:
        def decide(self, failure: Failure) -> Any:
            raise ZeroDivisionError

    raised = Bench(tmp_path, policy(handler=Breaks()), POISON).fails()
    assert raised.__cause__ is POISON
    assert "raised ZeroDivisionError instead of deciding" in str(raised)


def test_interrupted_in_user_code(tmp_path: Path) -> None:
    """P12: a query that is being stopped ends the batch, with no retry and nothing decided."""
    error = interrupted()
    bench = Bench(tmp_path, policy(handler=LogAndContinueHandler(), whole_batch="skip"), error)
    bench.takes = lambda: bench.box.append(entry(0, 9))
    with pytest.raises(StoppedBatchError) as caught:
        bench()
    assert caught.value.error is error
    assert len(bench.seen) == 1
    assert bench.ledger.batches() == []


def test_whatever_comes_out_of_a_stop(tmp_path: Path) -> None:
    """P12: once the query was stopped, nothing that user code raises is a failure."""
    bench = Bench(tmp_path, policy(handler=LogAndContinueHandler(), whole_batch="skip"), POISON)
    query = FakeQuery(query_id="q")
    bench.stop.follow(query)
    bench.takes = query.stop
    with pytest.raises(StoppedBatchError, match="no such currency"):
        bench()
    assert bench.ledger.batches() == []


def test_spark_sees_a_stop(tmp_path: Path) -> None:
    """P12: what leaves the batch has the words that Spark looks for, and little behind them.

    Spark's expression recurses for each character behind the first words.
    """
    query = FakeQuery(query_id="q")
    for error in (POISON, interrupted(), ValueError("x" * 100_000)):
        bench = Bench(tmp_path, policy(), error)
        bench.stop.follow(query)
        bench.takes = query.stop
        with pytest.raises(StoppedBatchError) as caught:
            bench()
        said = "".join(traceback.format_exception(caught.value))
        found = PROXY_ERROR.search(said)
        assert found is not None
        assert len(said) - found.start() < 300


def test_an_interrupt_that_is_no_stop(tmp_path: Path) -> None:
    """P12: a client's timeout that looks like an interrupt is an outage, while the query lives."""
    timeout = interrupted("java.io.InterruptedIOException: timeout")
    bench = Bench(tmp_path, policy(), timeout, None)
    bench.stop.follow(FakeQuery(query_id="q"))
    bench()
    assert len(bench.seen) == 2


def test_interrupted_while_waiting(tmp_path: Path) -> None:
    """P7, P12: stopping the query ends a wait at once, with Spark's own exception."""
    bench = Bench(tmp_path, policy(retry=Retry(initial=10.0)), *[OUTAGE] * 9)

    def sleep(_: int) -> None:
        raise interrupted()

    bench.frame.sleep = sleep
    with pytest.raises(StoppedBatchError):
        bench()
    assert len(bench.seen) == 1


def test_a_stop_while_waiting(tmp_path: Path) -> None:
    """P7: a stop that is asked for during a wait ends the batch; nothing is decided or counted."""
    chosen = policy(
        retry=Retry(initial=999.0, maximum=999.0),
        task_timeout=9999.0,
        on_transient=LogAndContinueHandler(),
        whole_batch="skip",
    )
    bench = Bench(tmp_path, chosen, *[OUTAGE] * 9)
    bench.takes = lambda: bench.box.append(entry(0, 9))
    held = []

    def sleep(_: int) -> None:
        if bench.stop.requested:
            held.append(bench.stop.holds("q"))
            raise interrupted()
        bench.stop.request("SIGTERM")

    bench.frame.sleep = sleep
    with pytest.raises(StoppedBatchError):
        bench()
    assert held == [True], "the supervisor may stop it now: nothing runs"
    assert len(bench.seen) == 1
    assert bench.ledger.batches() == []


def test_a_stop_while_waiting_by_hand(tmp_path: Path) -> None:
    """P7: outside a query there is nothing to hold, and the wait ends all the same."""
    bench = Bench(tmp_path, policy(retry=Retry(initial=999.0)), *[OUTAGE] * 9)
    bench.frame.query_id = None
    bench.frame.sleep = lambda _: bench.stop.request("SIGTERM")
    raised = bench.fails()
    assert raised.action == "stop"
    assert raised.__cause__ is OUTAGE
    assert len(bench.seen) == 1


def test_held_at_the_entry(tmp_path: Path) -> None:
    """A batch that arrives after a stop was asked for does not run."""
    bench = Bench(tmp_path, policy())

    def sleep(_: int) -> None:
        raise interrupted()

    bench.frame.sleep = sleep
    bench.stop.request("SIGTERM")
    with pytest.raises(StoppedBatchError):
        bench()
    assert bench.seen == []
    assert bench.stop.holds("q")


@pytest.mark.parametrize("action", ["fail", "restart", "stop"])
def test_a_flow_has_decided(tmp_path: Path, action: str) -> None:
    """A failure that a flow's stage has decided about passes through, as it is."""
    decided = stage_failed(action, "transient")
    chosen = policy(handler=LogAndContinueHandler(), on_transient=LogAndContinueHandler())
    bench = Bench(tmp_path, chosen, decided)
    assert bench.fails() is decided
    assert decided.__cause__ is None
    text = RuntimeError(f"Job aborted. {decided}\n\tat org.apache.X")
    bench = Bench(tmp_path, chosen, text)
    raised = bench.fails()
    assert (raised.action, raised.facts) == (action, decided.facts)
    assert raised.__cause__ is text
    assert len(bench.seen) == 1
    assert bench.ledger.batches() == []


def test_skip_the_whole_batch(tmp_path: Path) -> None:
    """P1: rows that are skipped with their batch are in the ledger."""
    chosen = policy(handler=LogAndContinueHandler(), whole_batch="skip")
    bench = Bench(tmp_path, chosen, POISON)
    bench()
    (account,) = bench.ledger.batches("store")
    assert (account.records_in, account.total("skipped"), account.balanced) == (10, 10, True)


def test_skipped_and_then_not(tmp_path: Path) -> None:
    """P4: a batch that was skipped before its commit, and got through when it came again."""
    chosen = policy(handler=LogAndContinueHandler(), whole_batch="skip")
    Bench(tmp_path, chosen, POISON)()
    bench = Bench(tmp_path, chosen)
    bench()
    assert bench.ledger.batches("store") == []


def test_over_budget(tmp_path: Path) -> None:
    """P5: a budget that the batch exceeds fails it, before the commit and before its account."""
    bench = Bench(tmp_path, policy())
    bench.settler.watch("orders", {"decode": Budget(max_ratio=0.1, window=10)})
    bench.takes = lambda: bench.box.append(entry(0, 9, dead=5))
    assert "budget" in bench.fails().facts["reason"]
    assert bench.ledger.batches() == []


def test_a_state_that_cannot_be_written(tmp_path: Path) -> None:
    """P4: a batch whose account cannot be stored is not committed, and comes again."""
    bench = Bench(tmp_path / "state", policy())
    bench.takes = lambda: bench.box.append(entry(0, 9))
    (tmp_path / "state").write_text("in the way")
    with pytest.raises(OSError, match="ledger"):
        bench()


def test_outside_a_query(tmp_path: Path) -> None:
    """Called by hand, without a query, it runs and is accounted for where there is a flow."""
    bench = Bench(tmp_path, policy())
    bench.frame.query_id = None
    bench.stop.request("code")
    bench()
    assert len(bench.seen) == 1


def test_travels(tmp_path: Path) -> None:
    """On Spark Connect a batch function runs in another process: it arrives with the state."""
    seen: list[int] = []
    away = str(tmp_path / "ran")

    def store(batch: Any, batch_id: int) -> None:
        Path(away).write_text(f"{batch_id}")
        seen.append(batch_id)

    bench = Bench(tmp_path / "state", policy())
    bench.settler.watch("orders", {"decode": Budget(max_ratio=0.01, window=10)})
    stage = replace(bench.function._stage, function=store)
    made = BatchFunction(stage, bench.settler, bench.stop)
    arrived = pickle.loads(pickle.dumps(made))
    bench.accounts.files().slot.add([entry(0, 9), entry(10, 19, partition=1)])
    arrived(bench.frame, 0)
    assert Path(away).read_text() == "0"
    assert seen == []
    assert bench.ledger.total("orders").records_in == 20
    bench.accounts.files().slot.add([entry(20, 39, batch_id=1, dead=9)])
    with pytest.raises(StageFailedError, match="budget"):
        arrived(bench.frame, 1)
