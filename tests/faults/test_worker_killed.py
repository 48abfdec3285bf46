"""Workers are killed, tasks tried again and speculated."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import sparkguard as sg
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


def test_a_worker_is_killed(spark: SparkSession, tmp_path: Path) -> None:
    """P1, P4: SIGKILL in the middle of a batch fails the query; the next start loses nothing."""
    job = Job(root=str(tmp_path))
    lines = values(3000, **{f"kill@{job.at('killed')}": [1500]})
    fill_folder(job, lines, files=3)
    guard = job.guard()

    with pytest.raises(Exception, match="Python worker exited unexpectedly"):
        guard.run(build(spark, job, guard))
    finish(spark, job)

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


def test_a_task_is_speculated(tmp_path: Path) -> None:
    """P3, P4: two attempts of a task at a time make one entry, and letters with one id."""
    job = Job(
        root=str(tmp_path),
        master="local-cluster[2,1,1024]",
        conf={
            "spark.speculation": "true",
            "spark.speculation.interval": "100ms",
            "spark.speculation.multiplier": "1.1",
            "spark.speculation.quantile": "0.5",
            "spark.speculation.minTaskRuntime": "100ms",
            "spark.executor.memory": "512m",
            "spark.locality.wait": "0",
        },
        slices=2,
    )
    # The last partition's first attempt hangs; its letters are written, and the second one is done.
    lines = values(2000, **{f"slow_once@{job.at('slow')}": [1990]})
    fill_folder(job, lines, files=1)

    running = Running(job)
    try:
        wait_for(lambda: Path(job.at("slow")).exists(), "The slow attempt")
        assert running.ended() == 0, running.said()
    finally:
        Path(job.at("slow.go")).touch()

    Counted(job).holds(lines)
