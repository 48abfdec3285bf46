"""A query is stopped while something waits, and a process by signals and by the marker."""

import re
import signal
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from sparkguard.cli import app
from tests.faults.harness import (
    Counted,
    Running,
    fill_folder,
    finish,
    letter_files,
    values,
    wait_for,
)
from tests.faults.job import Job, build

LONG = {"backoff": {"initial": "60s", "max": "60s"}}
GRACE = 60.0
"""Seconds that a running batch is given when a stop is asked for the first time."""

SLACK = 8.0
"""Seconds that a busy machine may add to the promised two."""


def outage_in(job: Job, number: int = 1500) -> list[bytes]:
    """Orders, one of which meets a service that is down until the job's file `up` is there."""
    lines = values(3000, **{f"outage@{job.at('up')}": [number]})
    fill_folder(job, lines, files=3)
    return lines


def waiting(stage: str, **more: Any) -> dict[str, Any]:
    """Settings by which a stage waits for a minute before it tries again."""
    return {"stages": {stage: {"retry": LONG, "task_timeout": "1h", **more}}}


def met(job: Job) -> list[int]:
    """The workers that met the outage."""
    path = Path(job.at("up.met"))
    # The last line may be half written.
    return [int(line) for line in path.read_text().split("\n")[:-1]] if path.exists() else []


def lives(pid: int) -> bool:
    """Whether the process is there and no zombie."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize("writer", ["foreach_batch", "noop"])
def test_a_query_is_stopped_while_a_worker_waits(
    spark: SparkSession, writer: str, tmp_path: Path
) -> None:
    """P7: the wait ends within 2 s, nothing is delivered afterwards, and the stop is no failure."""
    job = Job(root=str(tmp_path), writer=writer, trigger="on", settings=waiting("price"))
    lines = outage_in(job)
    query = build(spark, job, job.guard())()
    wait_for(lambda: met(job), "The outage")
    letters = len(letter_files(job))

    began = time.monotonic()
    query.stop()
    wait_for(lambda: not any(map(lives, met(job))), "The worker's end", 2 + SLACK)
    assert time.monotonic() - began < 2 + SLACK

    assert query.exception() is None
    assert len(letter_files(job)) == letters
    Path(job.at("up")).touch()
    if writer == "foreach_batch":
        finish(spark, job)
        Counted(job).holds(lines)


def test_a_query_is_stopped_while_the_driver_waits(spark: SparkSession, tmp_path: Path) -> None:
    """P7, P12: the wait ends at once; the batch is not committed and comes again."""
    job = Job(root=str(tmp_path), trigger="on", batch_trick="outage", settings=waiting("store"))
    lines = values(2000)
    fill_folder(job, lines, files=2)
    query = build(spark, job, job.guard())()
    wait_for(Path(job.at("met")).exists, "The outage")

    began = time.monotonic()
    query.stop()
    assert time.monotonic() - began < 2 + SLACK

    assert query.exception() is None
    assert not list(Path(job.at("checkpoint/commits")).glob("[0-9]*"))
    finish(spark, job)
    Counted(job).holds(lines)


def ends(running: Running, *, cut_off: bool = False) -> None:
    """The process ends by itself, with 0; no batch is cut off that need not be."""
    assert running.ended() == 0, running.said()[-5000:]
    found = re.search(r"query_stopped .*problem=.*comes again", running.said())
    assert (found is not None) is cut_off, running.said()[-5000:]


def test_sigterm_while_a_worker_waits(spark: SparkSession, tmp_path: Path) -> None:
    """P1, P7: the process exits with 0, and the next start loses nothing."""
    job = Job(root=str(tmp_path), trigger="on", settings=waiting("price"))
    lines = outage_in(job)
    running = Running(job)
    wait_for(lambda: met(job), "The outage")

    running.child.send(signal.SIGTERM)
    ends(running)

    Path(job.at("up")).touch()
    finish(spark, job)
    Counted(job).holds(lines)


def test_sigterm_while_the_driver_waits(spark: SparkSession, tmp_path: Path) -> None:
    """P1, P7: the same for the wait of a batch."""
    job = Job(root=str(tmp_path), trigger="on", batch_trick="outage", settings=waiting("store"))
    lines = values(2000)
    fill_folder(job, lines, files=2)
    running = Running(job)
    wait_for(Path(job.at("met")).exists, "The outage")

    running.child.send(signal.SIGTERM)
    ends(running)

    finish(spark, job)
    Counted(job).holds(lines)


def test_sigterm_while_the_supervisor_waits(spark: SparkSession, tmp_path: Path) -> None:
    """P1, P14: a wait before a restart ends at once; the exit is 0, and the batch comes again."""
    settings = {
        "restart": {"backoff": {"initial": "60s", "max": "60s"}},
        "stages": {"store": {"retry": {"max_attempts": 1}}},
    }
    job = Job(root=str(tmp_path), batch_trick="outage", settings=settings)
    lines = values(1000)
    fill_folder(job, lines, files=1)
    running = Running(job)
    wait_for(lambda: "restart_scheduled" in running.said(), "The restart's wait")

    running.child.send(signal.SIGTERM)
    ends(running)

    finish(spark, job)
    Counted(job).holds(lines)


@pytest.mark.parametrize("by", ["SIGTERM", "the command line"])
def test_a_stop_between_batches(spark: SparkSession, by: str, tmp_path: Path) -> None:
    """P1, P4: the batch in hand ends and is counted, the next one is not begun, the exit is 0."""
    job = Job(root=str(tmp_path), trigger="on", batch_trick="slow")
    lines = values(4000)
    fill_folder(job, lines, files=4)
    running = Running(job)
    wait_for(Path(job.at("out/0/_SUCCESS")).exists, "The first batch")

    if by == "SIGTERM":
        running.child.send(signal.SIGTERM)
    else:
        asked = CliRunner().invoke(app, ["stop", "fault", "--state", job.at("state")])
        assert asked.exit_code == 0, asked.output
    ends(running)

    done = job.guard().ledger.batches("orders")
    commits = list(Path(job.at("checkpoint/commits")).glob("[0-9]*"))
    assert 1 <= len(done) == len(commits) < 4
    assert all(batch.balanced for batch in done)
    finish(spark, job)
    Counted(job).holds(lines)


def test_a_second_sigterm_does_not_wait(spark: SparkSession, tmp_path: Path) -> None:
    """P1: a batch that is cut off comes again; the process still exits with 0."""
    job = Job(root=str(tmp_path), trigger="on", batch_trick="hang")
    lines = values(2000)
    fill_folder(job, lines, files=2)
    running = Running(job)
    wait_for(Path(job.at("met")).exists, "The batch")

    running.child.send(signal.SIGTERM)
    wait_for(lambda: "stop_requested" in running.said(), "The stop")
    began = time.monotonic()
    running.child.send(signal.SIGTERM)
    ends(running, cut_off=True)
    assert time.monotonic() - began < GRACE

    finish(spark, job)
    Counted(job).holds(lines)
