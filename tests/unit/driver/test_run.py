import functools
import json
from pathlib import Path
from typing import Any

import pytest

from sparkguard.core.policy import Retry
from sparkguard.core.watch import QueryFailed, RestartRefused, RestartScheduled
from sparkguard.driver.restarts import Limit
from sparkguard.driver.run import Run, names
from sparkguard.errors import RestartLimitError, StageFailedError
from sparkguard.testing.queries import BATCH, BUSY, END, REST, FakeQuery
from tests.unit.driver.desks import (
    OUTAGE,
    POISON,
    Office,
    as_spark_says_it,
    failing,
    stage_failed,
)

LONG = 60.0


def step(run: Run, office: Office, times: int = 1, *, seconds: float = LONG) -> None:
    """Let it look so often, with time for every back-off in between."""
    for _ in range(times):
        office.clock.advance(seconds)
        if not run.done:
            run.step()


def since_commit(office: Office) -> int:
    """What the state says."""
    document = office.state.load("restarts/build") or {"since_commit": 0}
    return int(document["since_commit"])


@pytest.mark.parametrize(
    "error",
    [
        OUTAGE,
        as_spark_says_it(OUTAGE),
        stage_failed("restart"),
        as_spark_says_it(stage_failed("restart", "transient")),
    ],
    ids=["transient", "transient text", "restart outcome", "restart outcome in text"],
)
def test_restarts(office: Office, error: BaseException) -> None:
    """P14: a transient cause and a `Restart` outcome start the query again."""
    second = FakeQuery(END)
    run = office.run(FakeQuery(REST, error), second)
    step(run, office, 10)
    assert run.done
    assert office.names_told() == [
        "QueryStarted",
        "QueryFailed",
        "RestartScheduled",
        "QueryStarted",
    ]


@pytest.mark.parametrize(
    "error",
    [
        POISON,
        NameError("name 'prcie' is not defined"),
        stage_failed("fail", "transient"),
        as_spark_says_it(stage_failed("fail", "transient")),
    ],
    ids=["poison", "programming", "fail outcome", "fail outcome in text"],
)
def test_stays_down(office: Office, error: BaseException) -> None:
    """P14: every other cause ends the run at once, whatever the limit has left."""
    run = office.run(FakeQuery(REST, error))
    with pytest.raises(type(error) if "[spark" not in str(error) else StageFailedError) as caught:
        step(run, office, 3)
    assert run.done
    assert caught.value is error or caught.value.__cause__ is error
    assert [type(event) for event in office.told[1:]] == [QueryFailed, RestartRefused]
    assert since_commit(office) == 0


def test_the_stage_is_told(office: Office) -> None:
    """P14: the facts that a worker hid in Spark's text reach the watchers."""
    run = office.run(FakeQuery(as_spark_says_it(stage_failed("fail"))))
    with pytest.raises(StageFailedError):
        step(run, office, 2)
    told = next(event for event in office.told if isinstance(event, QueryFailed))
    assert (told.stage, told.coordinates, told.cause) == ("price", "in[2]@7", "poison")
    assert told.message == "Stage 'price' failed."


def test_the_limit_used_up(office: Office, capsys: pytest.CaptureFixture[str]) -> None:
    """P14: after the last restart the cause is chained, and the process exits with 75."""
    run = office.run(*failing(6))
    with pytest.raises(RestartLimitError) as caught:
        step(run, office, 99)
    assert caught.value.code == 75
    assert isinstance(caught.value, SystemExit)
    assert caught.value.__cause__ is OUTAGE
    assert capsys.readouterr().err == f"{caught.value}\n"
    assert "'build' stays down" in str(caught.value)
    assert "the database is away" in str(caught.value)
    assert office.names_told().count("QueryStarted") == 6
    assert office.names_told()[-1] == "RestartRefused"


def test_a_new_process_gets_one_start(office: Office) -> None:
    """P14: with a limit that is used up, a new process starts the query once."""
    with pytest.raises(RestartLimitError):
        step(office.run(*failing(6)), office, 99)
    again = Office(office.folder, office.clock)
    with pytest.raises(RestartLimitError):
        step(again.run(*failing(2)), again, 99)
    assert again.names_told().count("QueryStarted") == 1
    once_more = Office(office.folder, office.clock)
    run = once_more.run(FakeQuery(BATCH, END))
    step(run, once_more, 5)
    assert run.done
    assert since_commit(once_more) == 0


def test_read_before_build(office: Office) -> None:
    """P14: the limit is read before `build` is called, and counted before it is called again."""
    seen = []

    def build() -> FakeQuery:
        seen.append(since_commit(office))
        return FakeQuery(OUTAGE)

    office.state.store("restarts/build", {"since_commit": 3, "times": []})
    run = office.run_of(build)
    with pytest.raises(RestartLimitError):
        step(run, office, 99)
    assert seen == [3, 4, 5]


def test_progress_clears(office: Office) -> None:
    """P14: a committed batch gives the query all of its restarts again."""
    queries = [query for _ in range(6) for query in (*failing(2), FakeQuery(BATCH, OUTAGE))]
    run = office.run(*queries, FakeQuery(END))
    step(run, office, 99)
    assert run.done
    scheduled = [event.restarts for event in office.told if isinstance(event, RestartScheduled)]
    assert scheduled == [1, 2] + [1, 2, 3] * 5 + [1]


def test_old_progress_does_not_clear(office: Office) -> None:
    """P14: a report of a run before this one is no progress of this one."""
    old = {"id": "q", "runId": "another", "batchId": 41}
    queries = failing(6)
    for query in queries:
        query.progress = old
    run = office.run(*queries)
    with pytest.raises(RestartLimitError):
        step(run, office, 99)


def test_a_replayed_batch_is_progress(office: Office) -> None:
    """P14: the same batch, committed after a restart, clears the count."""
    first = FakeQuery(BATCH, OUTAGE, query_id="q", first_batch=7)
    again = FakeQuery(REST, BATCH, query_id="q", first_batch=7)
    run = office.run(first, again)
    step(run, office, 3)
    assert since_commit(office) == 1
    step(run, office, 3)
    assert since_commit(office) == 0


def test_a_commit_just_before_the_end(office: Office) -> None:
    """P14: a batch committed between the last look and the failure counts."""

    class Quick(FakeQuery):
        @property
        def isActive(self) -> bool:  # noqa: N802
            active = super().isActive
            if not active:
                self.progress = {"runId": self.runId, "batchId": 0}
            return active

    office.state.store("restarts/build", {"since_commit": 5, "times": []})
    run = office.run(Quick(REST, OUTAGE), FakeQuery(END))
    step(run, office, 9)
    assert run.done
    assert since_commit(office) == 1


def test_progress_that_cannot_be_read(office: Office) -> None:
    """A report that Python cannot read stops nothing."""

    class Odd(FakeQuery):
        @property
        def lastProgress(self) -> Any:  # noqa: N802
            raise KeyError("stateOperators")

    run = office.run(Odd(BATCH, BATCH, END))
    step(run, office, 5)
    assert run.done


def test_flapping_ends(office: Office) -> None:
    """P14: a query that commits a batch and fails, again and again, is restarted 20 times."""
    limit = Limit(wait=Retry(initial=1, maximum=1))
    run = office.run(*(FakeQuery(BATCH, OUTAGE) for _ in range(30)), limit=limit)
    with pytest.raises(RestartLimitError, match="20 times within an hour"):
        step(run, office, 999, seconds=10)
    assert office.names_told().count("QueryStarted") == 21


def test_waits_before_a_restart(office: Office) -> None:
    """P14: `build` is not called before the back-off is over."""
    run = office.run(*failing(2))
    for _ in range(3):
        run.step()
    assert office.names_told()[-1] == "RestartScheduled"
    office.clock.advance(0.9)
    run.step()
    assert not run.active
    office.clock.advance(0.2)
    run.step()
    assert run.active


def test_a_build_that_fails(office: Office) -> None:
    """P14: an outage at the start is met by a restart, everything else ends the run."""
    run = office.run(ConnectionRefusedError(), ConnectionRefusedError(), POISON)
    with pytest.raises(ValueError, match="no such currency") as caught:
        step(run, office, 9)
    assert caught.value is POISON
    assert office.names_told() == ["QueryFailed", "RestartScheduled"] * 2 + [
        "QueryFailed",
        "RestartRefused",
    ]


@pytest.mark.parametrize("given", [None, object(), "started"])
def test_a_build_that_gives_no_query(office: Office, given: object) -> None:
    """A build that forgot `return` or `start` is told so, by name."""
    run = office.run(given, name="load")
    kind = type(given).__name__
    with pytest.raises(TypeError, match=f"'load' returned {kind}; it must return the started"):
        run.step()
    assert run.done


def test_a_start_that_cannot_be_noted(office: Office) -> None:
    """What fails right after the start is a failed start: the query does not run on unwatched."""
    first, second = FakeQuery(BUSY), FakeQuery(END)
    troubles = [OSError(28, "no space left on device")]

    def started(_: Any) -> None:
        if troubles:
            raise troubles.pop()

    office.started = started
    run = office.run(first, second)
    run.step()
    assert first.stops == 1
    step(run, office, 5)
    assert run.done
    assert office.names_told() == ["QueryFailed", "RestartScheduled", "QueryStarted"]


def test_a_state_that_cannot_be_written(office: Office, capsys: pytest.CaptureFixture[str]) -> None:
    """P14: a restart that cannot be counted does not happen; the sentence says why."""
    run = office.run(*failing(2))
    Path(office.state.path).write_text("in the way")
    with pytest.raises(RestartLimitError, match="cannot be counted, the state raised") as caught:
        step(run, office, 9)
    assert caught.value.__cause__ is OUTAGE
    assert "the database is away" in capsys.readouterr().err


def test_spark_is_gone(office: Office) -> None:
    """A JVM that does not answer is not restarted against: only a new process helps."""

    class Dead(FakeQuery):
        @property
        def isActive(self) -> bool:  # noqa: N802
            raise ConnectionRefusedError("[Errno 111] Connection refused")

    run = office.run(Dead(), FakeQuery())
    run.step()
    with pytest.raises(ConnectionRefusedError) as caught:
        run.step()
    assert run.done
    assert "'build'" in caught.value.__notes__[0]
    assert not run.active
    refused = office.told[-1]
    assert isinstance(refused, RestartRefused)
    assert "does not answer" in refused.reason


@pytest.mark.parametrize("script", [(END,), (REST, REST)], ids=["ended", "still runs"])
def test_a_budget_found_exceeded_late(office: Office, script: tuple[str, ...]) -> None:
    """P5: a query over its budget is stopped and fails for it, this run of it only."""
    query = FakeQuery(*script)
    office.breaches = {
        "of an older run": stage_failed("restart"),
        query.runId: stage_failed("fail"),
    }
    run = office.run(query)
    with pytest.raises(StageFailedError) as caught:
        step(run, office, 5)
    assert caught.value.action == "fail"
    assert query.stops == (END not in script)


DIED = RuntimeError(
    "Job aborted due to stage failure: org.apache.spark.SparkException: "
    "Python worker exited unexpectedly (crashed). Consider setting"
)


def test_a_worker_died(office: Office) -> None:
    """P14: a query whose worker ended is restarted once, and its tasks are asked for care."""
    asked: list[str] = []

    def careful(query_id: str) -> bool:
        asked.append(query_id)
        return len(asked) > 1

    office.careful = careful
    first = FakeQuery(REST, DIED)
    run = office.run(first, FakeQuery(REST, DIED, query_id=first.id), FakeQuery(END))
    with pytest.raises(RuntimeError) as caught:
        step(run, office, 10)
    assert caught.value is DIED
    assert asked == [first.id] * 2
    assert since_commit(office) == 1
    refused = office.told[-1]
    assert isinstance(refused, RestartRefused)
    assert "careful already" in refused.reason


def test_a_worker_died_in_a_batch_function(office: Office) -> None:
    """P14: also where a guarded batch function met it first and decided to fail."""
    office.careful = lambda _: False
    error = RuntimeError(f"{DIED}\nsparkguard.errors.{stage_failed('fail', 'fatal')}")
    run = office.run(FakeQuery(REST, error), FakeQuery(END))
    step(run, office, 10)
    assert run.done
    assert since_commit(office) == 1


def test_no_note_no_care(office: Office) -> None:
    """P14: where the state takes no note the query stays down; it would die of the same record."""

    def careful(_: str) -> bool:
        raise OSError("the disk is full")

    office.careful = careful
    run = office.run(FakeQuery(REST, DIED))
    with pytest.raises(RuntimeError, match="exited unexpectedly"):
        step(run, office, 10)
    refused = office.told[-1]
    assert isinstance(refused, RestartRefused)
    assert "the disk is full" in refused.reason


def test_a_worker_sees_the_marker_first(office: Office) -> None:
    """P12, P7: a pass that ended its wait for the stop marker is a stop, no failure."""
    run = office.run(FakeQuery(REST, as_spark_says_it(stage_failed("stop"))))
    office.state.request_stop()
    step(run, office, 5)
    assert run.done
    assert run.error is None
    assert office.stop.requested
    assert office.names_told() == ["QueryStarted"]


def test_a_forged_stop(office: Office) -> None:
    """A text that claims a stop which nobody asked for is a failure."""
    run = office.run(FakeQuery(REST, as_spark_says_it(stage_failed("stop"))))
    with pytest.raises(StageFailedError):
        step(run, office, 5)


def test_a_query_that_hangs_after_its_end(office: Office, monkeypatch: Any) -> None:
    """A query stopped from outside that never lets go does not take the supervisor with it."""
    monkeypatch.setattr("sparkguard.driver.run._PATIENCE", 0.01)
    query = FakeQuery(hangs=True)
    run = office.run(query)
    run.step()
    query.stops = 1
    run.step()
    assert run.done


def load() -> None:
    """Stands for a build."""


class Loader:
    def __call__(self) -> None: ...


def test_names() -> None:
    """Each build has a name and so a limit of its own, whatever it is."""
    assert names([load]) == ["load"]
    assert names([lambda: None, lambda: None]) == ["lambda-1", "lambda-2"]
    assert names([load, functools.partial(load), functools.partial(load)]) == [
        "load-1",
        "load-2",
        "load-3",
    ]
    assert names([Loader(), load]) == ["Loader", "load"]


def test_two_of_a_name_have_two_limits(office: Office) -> None:
    """P14: the restarts of one query do not use up another's."""
    one, two = names([load, load])
    step(office.run(*failing(2), name=one), office, 3)
    step(office.run(*failing(1), name=two), office, 1)
    files = {file.stem: json.loads(file.read_text()) for file in office.folder.rglob("*.json")}
    assert {name: document["since_commit"] for name, document in files.items()} == {"load-1": 1}


def test_commits_are_told(office: Office) -> None:
    """P4: whoever settles by commits hears of each one that was seen, once."""
    query = FakeQuery(BATCH, REST, BATCH, END, query_id="q")
    office.supervise(office.run(query))
    assert office.committed == [("q", 0), ("q", 1)]


def test_an_idle_query_has_committed_nothing(office: Office) -> None:
    """P4: its report bears the number of the batch that comes next, which may run by now."""

    class Reports(FakeQuery):
        idle = False

        @property
        def lastProgress(self) -> dict[str, Any] | None:  # noqa: N802
            known = super().lastProgress
            if known is None or not self.idle:
                return known and {**known, "durationMs": {"addBatch": 5}}
            return {**known, "batchId": known["batchId"] + 1, "durationMs": {"latestOffset": 1}}

    query = Reports(BATCH, REST, END)
    run = office.run(query)
    step(run, office, 2)
    query.idle = True
    step(run, office, 3)
    assert office.committed == [(query.id, 0)]
