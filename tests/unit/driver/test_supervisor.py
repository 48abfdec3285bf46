import signal
import threading
from itertools import cycle, repeat
from pathlib import Path
from typing import Any

import pytest

from sparkguard.core.watch import QueryStopped
from sparkguard.driver.stop import StoppedBatchError
from sparkguard.errors import ConfigError, RestartLimitError, StageFailedError
from sparkguard.testing.queries import BATCH, BUSY, END, REST, FakeQuery
from tests.unit.driver.desks import OUTAGE, POISON, Office, failing, stage_failed
from tests.unit.driver.frames import FakeFrame, interrupted


class Asks(FakeQuery):
    """Asks for a stop, or whatever else, when its script says "ask"."""

    def __init__(self, ask: Any, *script: Any, **facts: Any) -> None:
        super().__init__(*script, **facts)
        self.ask = ask

    def play(self, act: Any) -> None:
        if act == "ask":
            self.ask()
        else:
            super().play(act)


class Busy(FakeQuery):
    """A query so busy that it is never seen to rest: a batch follows the other at once."""

    def play(self, act: Any) -> None:
        super().play(act)
        self._busy = True


def stopped(office: Office) -> list[tuple[str | None, int | None]]:
    """The queries that were stopped, with their last batches."""
    return [
        (event.query_name, event.batch_id)
        for event in office.told
        if isinstance(event, QueryStopped)
    ]


def test_until_all_have_ended(office: Office) -> None:
    """It returns when every query has ended by itself."""
    office.supervise(
        office.run(FakeQuery(BATCH, END), name="one"),
        office.run(FakeQuery(BATCH, BATCH, BATCH, END), name="two"),
    )
    assert office.names_told() == ["QueryStarted", "QueryStarted"]


def test_each_has_its_own_limit(office: Office, capsys: pytest.CaptureFixture[str]) -> None:
    """P14: one query's restarts do not use up another's; the first that is down ends the run."""
    steady = FakeQuery()
    with pytest.raises(RestartLimitError, match="'flaky'"):
        office.supervise(
            office.run(*failing(4), steady, name="limping"), office.run(*failing(6), name="flaky")
        )
    assert "'flaky' stays down" in capsys.readouterr().err
    assert steady.stops == 1


def test_one_for_good_stops_the_others(office: Office) -> None:
    """P14: the others end their batch, are stopped between two, and then the cause is raised."""
    other = FakeQuery(*[BATCH] * 6, BUSY, BUSY, BUSY, BATCH)
    with pytest.raises(ValueError, match="no such currency") as caught:
        office.supervise(
            office.run(other, name="other"), office.run(FakeQuery(*[REST] * 6, POISON), name="bad")
        )
    assert caught.value is POISON
    assert (other.stops, other.cut_off) == (1, False)
    assert stopped(office) == [("other", 6)]


def test_stop_between_batches(office: Office) -> None:
    """A stop that is asked for in a batch waits for the batch's end, and nothing is raised."""
    query = Asks(lambda: office.stop.request("code"), BATCH, BUSY, "ask", BUSY, BUSY, BATCH)
    office.supervise(office.run(query))
    assert (query.stops, query.cut_off) == (1, False)
    assert stopped(office) == [("build", 1)]


def test_a_held_batch_is_between(office: Office) -> None:
    """A batch that waits at its entry proves that the one before it is committed."""
    frame = FakeFrame(sleep=_interrupt)

    class Guarded(Asks):
        def play(self, act: Any) -> None:
            super().play(act)
            if act == BUSY:
                with pytest.raises(StoppedBatchError):
                    office.stop.gate(frame, self.id)  # type: ignore[arg-type]

    query = Guarded(lambda: office.stop.request("code"), BATCH, "ask", acts=repeat(BUSY))
    before = office.clock.time()
    office.supervise(office.run(query), grace=3600)
    assert query.stops == 1
    assert office.clock.time() - before < 10
    assert len(frame.slept) == 1, "no batch was held before the stop, and one after it"


def _interrupt(_: int) -> None:
    raise interrupted()


def test_never_at_rest(office: Office) -> None:
    """A query that never rests is stopped right after a commit, not in the middle of a batch."""
    query = Busy(*[BUSY, BATCH] * 3, acts=[*[BUSY] * 30, BATCH, *[BUSY] * 500])
    asks = Asks(lambda: office.stop.request("code"), *[REST] * 8, "ask")
    office.supervise(office.run(query, name="busy"), office.run(asks, name="asks"), grace=3600)
    assert ("busy", 3) in stopped(office)
    assert office.clock.time() < 1_800_000_000 + 60


def test_grace(office: Office) -> None:
    """A batch that outlives the grace is cut off, and comes again."""
    query = Asks(lambda: office.stop.request("code"), BATCH, BUSY, "ask", acts=repeat(BUSY))
    office.supervise(office.run(query), grace=30)
    assert query.cut_off
    assert 30 <= office.clock.time() - 1_800_000_000 < 35
    assert stopped(office) == [("build", 0)]


def test_forced(office: Office) -> None:
    """A forced stop does not wait for the batch."""

    def ask() -> None:
        office.stop.request("code")
        office.stop.force()

    query = Asks(ask, BUSY, "ask", acts=repeat(BUSY))
    office.supervise(office.run(query), grace=3600)
    assert query.cut_off
    assert office.clock.time() < 1_800_000_000 + 10


def test_the_marker(office: Office) -> None:
    """The marker in the state stops the run; the one of an earlier stop is cleared at the start."""
    office.state.request_stop()
    query = Asks(office.state.request_stop, BATCH, "ask", acts=cycle([BUSY, BATCH]))
    office.supervise(office.run(query))
    assert (query.stops, query.cut_off) == (1, False)
    assert query.progress is not None
    assert query.progress["batchId"] > 0
    assert not office.state.stop_requested(), "obeyed; a later job would stumble over it"


def test_workers_are_told(office: Office) -> None:
    """P7: while queries are being stopped the marker is set, so that waits in workers end."""
    seen = []

    class Looks(Asks):
        def stop(self) -> None:
            seen.append(office.state.stop_requested())
            super().stop()

    query = Looks(lambda: office.stop.request("code"), BATCH, "ask")
    office.supervise(office.run(query))
    assert seen == [True]
    assert not office.state.stop_requested(), "a query started later would meet it"
    assert not office.stop.requested, "and its batches would be held"


def test_a_marker_that_cannot_be_set(office: Office) -> None:
    """A state that fails while stopping keeps no query from being stopped."""

    def ask() -> None:
        folder = Path(office.state.path)
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()
        folder.write_text("in the way")
        office.stop.request("code")

    query = Asks(ask, BATCH, "ask")
    office.supervise(office.run(query))
    assert query.stops == 1


def test_no_start_while_stopping(office: Office) -> None:
    """A query that waits for its restart, or was not built yet, is not started any more."""

    def stops() -> FakeQuery:
        office.stop.request("code")
        return FakeQuery()

    office.supervise(office.run_of(stops, name="one"), office.run(name="two"))
    assert office.names_told() == ["QueryStarted", "QueryStopped"]


@pytest.mark.parametrize(
    ("error", "raised"),
    [(POISON, True), (stage_failed("fail"), True), (OUTAGE, False), (stage_failed("stop"), False)],
    ids=["poison", "fail", "outage", "stop"],
)
def test_failing_while_stopping(office: Office, error: BaseException, raised: bool) -> None:
    """A failure in the last batch is not hidden by the stop, unless the next start heals it."""
    query = Asks(lambda: office.stop.request("code"), BATCH, BUSY, "ask", BUSY, BUSY, error)
    run = office.run(query)
    if raised:
        with pytest.raises(type(error)) as caught:
            office.supervise(run)
        assert caught.value is error
    else:
        office.supervise(run)
    assert ("QueryFailed" in office.names_told()) == (
        not str(error).startswith("Stage 'price'") or raised
    )
    assert "RestartScheduled" not in office.names_told()
    assert query.stops == 0


def test_the_first_cause_is_raised(office: Office) -> None:
    """Of two that fail for good, the first is raised, and both are told."""
    second = FakeQuery(*[BUSY] * 9, TypeError("the second"))
    with pytest.raises(ValueError, match="no such currency"):
        office.supervise(office.run(FakeQuery(POISON), name="1"), office.run(second, name="2"))
    assert office.names_told().count("QueryFailed") == 2


def test_stop_raises(office: Office) -> None:
    """A stop that Spark gave up on (stopTimeout) is an end like any other."""
    late = Asks(
        lambda: office.stop.request("code"), BATCH, "ask", stop_raises=TimeoutError("stopTimeout")
    )
    other = FakeQuery()
    office.supervise(office.run(late, name="late"), office.run(other, name="other"))
    assert (late.stops, other.stops) == (1, 1)
    assert len(stopped(office)) == 2


def test_stop_hangs(office: Office) -> None:
    """A batch function that hangs keeps nobody waiting for ever, and the others are stopped."""
    query = Asks(lambda: office.stop.request("code"), BUSY, "ask", acts=repeat(BUSY), hangs=True)
    other = FakeQuery()
    office.supervise(office.run(query, name="hangs"), office.run(other, name="other"), grace=5)
    assert other.stops == 1
    assert 15 <= office.clock.time() - 1_800_000_000 < 20
    assert stopped(office) == [("other", None), ("hangs", None)]
    assert office.stop.requested, "its batch is still held, should it ever come to its entry"
    query.let_go()


def test_spark_dies(office: Office) -> None:
    """When the JVM is gone, what it raised comes out, not what stopping raised after it."""

    class Dies(FakeQuery):
        def play(self, act: Any) -> None:
            if act == "die":
                raise ConnectionRefusedError("[Errno 111] Connection refused")
            super().play(act)

    with pytest.raises(ConnectionRefusedError) as caught:
        office.supervise(
            office.run(Dies(BATCH, acts=repeat("die")), name="one"),
            office.run(Dies(BATCH, REST, REST, acts=repeat("die")), name="two"),
        )
    assert "'one'" in caught.value.__notes__[0]
    assert stopped(office) == [("two", 0)]


def test_nothing_starts_without_a_state(office: Office) -> None:
    """A state that cannot be used is said before anything is started."""
    run = office.run(POISON)
    Path(office.state.path).write_text("in the way")
    with pytest.raises(ConfigError, match=r"The state at '.*state' cannot be read"):
        office.run(POISON)
    with pytest.raises(ConfigError, match=r"The state at '.*state' cannot be written"):
        office.supervise(run)
    assert not office.told


def test_signals_are_given_back(office: Office) -> None:
    """The handlers of the application are back when the run has ended."""
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    office.supervise(office.run(FakeQuery(END)))
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before


def test_signals_are_kept(office: Office) -> None:
    """A session made by `build` claims SIGINT; the supervisor takes it back, and then lets go."""

    def sparks(*_: Any) -> None:
        raise AssertionError

    before = signal.getsignal(signal.SIGINT)

    def build() -> FakeQuery:
        signal.signal(signal.SIGINT, sparks)
        return Asks(lambda: signal.raise_signal(signal.SIGINT), BATCH, "ask")

    try:
        office.supervise(office.run_of(build))
        assert signal.getsignal(signal.SIGINT) is sparks
    finally:
        signal.signal(signal.SIGINT, before)
    assert stopped(office) == [("build", 0)]


def test_a_signal_that_spark_caught(office: Office) -> None:
    """A SIGINT that came as KeyboardInterrupt, from a handler of Spark's, is a stop as well."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    query = Asks(interrupt, BATCH, BUSY, "ask", BUSY, BUSY, BATCH)
    office.supervise(office.run(query))
    assert (query.stops, query.cut_off) == (1, False)
    assert stopped(office) == [("build", 1)]


def test_outside_the_main_thread(office: Office) -> None:
    """In a thread of a notebook there are no signals, and everything else works."""
    thread = threading.Thread(target=office.supervise, args=(office.run(FakeQuery(BATCH, END)),))
    thread.start()
    thread.join(30)
    assert office.names_told() == ["QueryStarted"]


def test_a_worker_ends_its_wait_first(office: Office) -> None:
    """P7: a pass that saw the marker first ends the query, and the run ends well."""
    query = Asks(office.state.request_stop, BATCH, "ask", stage_failed("stop"))
    other = FakeQuery()
    office.supervise(office.run(query, name="one"), office.run(other, name="other"))
    assert other.stops == 1
    with pytest.raises(StageFailedError):
        raise query.exception() or AssertionError
