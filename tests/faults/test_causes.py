"""What ends a query for good, what a restart heals, and how the process ends."""

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import sparkguard as sg
from tests.faults.harness import (
    Counted,
    Running,
    Supervised,
    fill_folder,
    finish,
    letter_files,
    values,
)
from tests.faults.job import Job, build

AT_ONCE: dict[str, Any] = {"max_restarts": 100, "backoff": {"initial": "10ms"}}
ONCE: dict[str, Any] = {"retry": {"max_attempts": 1}}


def test_restarted_until_it_works(spark: SparkSession, tmp_path: Path) -> None:
    """P1, P14: a transient cause in each batch and in a record; every restart goes on there."""
    stages = {"store": ONCE, "price": ONCE}
    job = Job(
        root=str(tmp_path),
        batch_trick="fail_once",
        settings={"restart": AT_ONCE, "stages": stages},
    )
    lines = values(3000, **{f"fail_once@{job.at('once')}": [2500]})
    fill_folder(job, lines, files=3)
    running = Supervised(spark, job)

    running.ended()

    assert running.starts == 1 + 3 + 1
    Counted(job).holds(lines)


def test_retried_without_a_restart(spark: SparkSession, tmp_path: Path) -> None:
    """P7: the same causes, met by the stages' own retries; the account is of one evaluation."""
    job = Job(root=str(tmp_path), batch_trick="fail_once")
    lines = values(3000, **{f"fail_once@{job.at('once')}": [2500]})
    fill_folder(job, lines, files=3)
    running = Supervised(spark, job)

    running.ended()

    assert running.starts == 1
    Counted(job).holds(lines)
    assert job.guard().ledger.total("orders").stages["price"]["retries"] == 1


def test_the_limit_is_used_up(spark: SparkSession, tmp_path: Path) -> None:
    """P14: the process exits with 75 and the last cause; a newly started one gets one start."""
    settings = {"restart": {**AT_ONCE, "max_restarts": 2}, "stages": {"store": ONCE}}
    job = Job(root=str(tmp_path), batch_trick="outage", settings=settings)
    lines = values(1000)
    fill_folder(job, lines, files=1)

    running = Running(job)

    assert running.ended() == 75, running.said()
    last = running.said().strip().splitlines()[-1]
    assert "stays down" in last
    assert "the target is down" in last
    assert running.said().count("restart_scheduled") == 2
    state = json.loads(next(Path(job.at("state/restarts")).glob("*.json")).read_text())
    assert state["since_commit"] == 2
    finish(spark, job)
    Counted(job).holds(lines)


def test_the_code_is_wrong(tmp_path: Path) -> None:
    """P10: no restart heals it; the process exits with 1 and names the stage and the record."""
    job = Job(root=str(tmp_path), settings={"restart": AT_ONCE})
    fill_folder(job, values(1000, typo=[500]), files=1)

    running = Running(job)

    assert running.ended() == 1, running.said()
    said = running.said()
    assert "name 'prize' is not defined" in said
    assert "restart_refused" in said
    assert "restart_scheduled" not in said
    assert not letter_files(job)


@pytest.mark.parametrize("where", ["map", "foreach_batch"])
def test_system_exit_does_not_hang(spark: SparkSession, where: str, tmp_path: Path) -> None:
    """P11: it fails the query with cause fatal; unguarded, a foreachBatch would hang for ever."""
    job = Job(root=str(tmp_path), batch_trick="exit" if where == "foreach_batch" else "")
    lines = values(1000, **({"exit_by_exception": [500]} if where == "map" else {}))
    fill_folder(job, lines, files=1)
    running = Supervised(spark, job)

    with pytest.raises(sg.StageFailedError, match="SystemExit") as raised:
        running.ended()

    assert raised.value.facts["cause"] == "fatal"
    assert running.starts == 1


@pytest.mark.parametrize("writer", ["foreach_batch", "parquet"])
def test_a_budget_over_tasks_and_batches(spark: SparkSession, writer: str, tmp_path: Path) -> None:
    """P5: small tasks that are each within the window are too many together.

    Before the commit of a batch function; by the next batch elsewhere.
    """
    settings = {"stages": {"price": {"budget": {"max_ratio": 0.05, "window": 500}}}}
    job = Job(root=str(tmp_path), writer=writer, settings=settings)
    lines = values(6000, bad=range(0, 6000, 10))
    fill_folder(job, lines, files=60)
    guard = job.guard()

    with pytest.raises(sg.StageFailedError, match=r"its budget is 0\.05 of 500") as raised:
        guard.run(build(spark, job, guard))

    assert raised.value.facts["reason"] == "budget"
    total = guard.ledger.total("orders")
    commits = list(Path(job.at("checkpoint/commits")).glob("[0-9]*"))
    assert total.balanced
    if writer == "foreach_batch":
        assert total.records_in == 100 * len(commits)
        assert len(commits) < 5
    else:
        assert len(commits) < 30


def test_a_budget_in_one_task(spark: SparkSession, tmp_path: Path) -> None:
    """P5: where everything fails, the task ends long before everything has failed."""
    job = Job(root=str(tmp_path))
    fill_folder(job, values(20_000, bad=range(20_000)), files=1)
    guard = job.guard()

    with pytest.raises(sg.StageFailedError, match="budget") as raised:
        guard.run(build(spark, job, guard))

    assert raised.value.facts["stage"] == "price"
    assert raised.value.action == "fail"
    assert not Counted(job).letters
