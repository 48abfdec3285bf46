"""Workers are killed, and tasks tried again."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.faults.harness import (
    Counted,
    Running,
    fill_folder,
    letter_files,
    values,
)
from tests.faults.job import Job, build


def test_a_worker_is_killed(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """P1, P4, P14: SIGKILL in the middle of a batch; the restart finds no record at fault."""
    job = Job(root=str(tmp_path))
    lines = values(3000, **{f"kill@{job.at('killed')}": [1500]})
    fill_folder(job, lines, files=3)
    guard = job.guard()

    with caplog.at_level("INFO"):
        guard.run(build(spark, job, guard))

    assert Path(job.at("killed")).exists()
    assert caplog.text.count("sparkguard.restart_scheduled") == 1
    Counted(job).holds(lines)


def test_a_task_is_tried_again(tmp_path: Path) -> None:
    """P1, P4: letters of an attempt that died behind their acknowledgement count once."""
    job = Job(root=str(tmp_path), master="local[2,4]", fault="after_flush", fault_kills="worker")
    lines = values(3000, **{f"exit@{job.at('exited')}": [1500]})
    fill_folder(job, lines, files=2)

    running = Running(job)

    assert running.ended() == 0, running.said()
    assert Path(job.at("struck")).exists()
    assert Path(job.at("exited")).exists()
    Counted(job).holds(lines)
    assert len(letter_files(job)) > 2
