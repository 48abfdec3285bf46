"""Workers are killed, tasks tried again and speculated."""

import signal
from pathlib import Path

import msgspec
import pytest
from pyspark.sql import SparkSession

from tests.faults.cluster import Cluster
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

SPECULATION = {
    "spark.cores.max": "2",
    "spark.executor.cores": "1",
    "spark.executor.memory": "512m",
    "spark.locality.wait": "0",
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.5",
    # After so long Spark kills the Python worker of an attempt that it has given up.
    "spark.python.task.killTimeout": "120s",
}


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
    """P3, P4: two attempts of a task deliver the same letters; they count once, and so do records.

    The first attempt hangs, its copy on the other host wins, and then the loser wakes up and
    stores its letters too, before Spark ends its process.
    """
    job = Job(root=str(tmp_path), slices=2, trigger="on")
    lines = values(2000, **{f"slow_once@{job.at('slow')}": [1990]})
    fill_folder(job, lines, files=1)
    with Cluster(tmp_path) as cluster:
        running = Running(msgspec.structs.replace(job, master=cluster.master, conf=SPECULATION))
        wait_for(Path(job.at("slow")).exists, "The slow attempt")
        wait_for(lambda: len(letter_files(job)) == 2, "The letters of both tasks")
        wait_for(Path(job.at("out/0/_SUCCESS")).exists, "The end of the batch")
        Path(job.at("slow.go")).touch()
        wait_for(lambda: len(letter_files(job)) == 3, "The letters of the loser")
        running.child.send(signal.SIGTERM)
        assert running.ended() == 0, running.said()

    Counted(job).holds(lines)
