"""A few of the faults of `tests/faults`, small: the rest runs with ``make test-faults``."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.faults.harness import Counted, Running, Supervised, fill_folder, finish, values
from tests.faults.job import Job, build


def test_a_worker_is_killed(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """P1, P4, P14: SIGKILL in the middle of a batch; the careful restart loses nothing."""
    job = Job(root=str(tmp_path))
    lines = values(600, **{f"kill@{job.at('killed')}": [300]})
    fill_folder(job, lines, files=3)
    guard = job.guard()

    with caplog.at_level("INFO"):
        guard.run(build(spark, job, guard))

    assert Path(job.at("killed")).exists()
    assert caplog.text.count("sparkguard.restart_scheduled") == 1
    Counted(job).holds(lines)


def test_the_driver_is_killed(spark: SparkSession, tmp_path: Path) -> None:
    """P1–P4: SIGKILL behind the acknowledgement of the letters; the next start loses nothing."""
    lines = values(600)
    job = Job(root=str(tmp_path), fault="after_flush")
    fill_folder(job, lines, files=3)

    first = Running(job)
    assert first.ended() == -9, first.said()
    finish(spark, job)

    Counted(job).holds(lines)


def test_the_disk_is_full(spark: SparkSession, tmp_path: Path) -> None:
    """P2: letters that cannot be written fail the task; the restart loses nothing."""
    settings = {"restart": {"backoff": {"initial": "10ms"}}}
    job = Job(root=str(tmp_path), settings=settings)
    lines = values(600, **{f"full_disk@{job.at('full')}": [300]})
    fill_folder(job, lines, files=3)
    running = Supervised(spark, job)

    running.ended()

    assert running.starts == 2
    Counted(job).holds(lines)
