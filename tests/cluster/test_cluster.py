"""A standalone cluster with two workers: parts of it are killed while a batch runs.

The pipeline is the main job: Kafka in, letters into a topic, a file a batch out.
"""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psutil
import pytest

from tests.conftest import MakeTopic
from tests.faults.harness import (
    Counted,
    Running,
    fill_folder,
    fill_topic,
    letter_files,
    values,
    wait_for,
)
from tests.faults.job import Job
from tests.support.cluster import Cluster
from tests.support.kafka import Broker

ONE_CORE_EACH = {
    "spark.cores.max": "2",
    "spark.executor.cores": "1",
    "spark.executor.memory": "512m",
    "spark.locality.wait": "0",
    "spark.task.maxFailures": "4",
}
LETTERS_A_BATCH = 20
"""A batch has a thousand orders, 2 % of them bad; it is the second one that hangs."""

SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.5",
    # After so long Spark kills the Python worker of an attempt that it has given up.
    "spark.python.task.killTimeout": "120s",
}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A cluster of its own: the test harms it."""
    with Cluster(tmp_path) as started:
        yield started


def kafka_job(
    cluster: Cluster, broker: Broker, topic: MakeTopic, root: Path, **conf: str
) -> tuple[Job, list[bytes]]:
    """The main job on the cluster; one of its records hangs when it is met first.

    Bad records have odd numbers, so they are in the partition of the one that hangs: its task has
    sent letters by then, and whoever does its work again sends them again.
    """
    job = Job(
        root=str(root),
        servers=broker.servers,
        topic=topic(2),
        dead=topic(),
        master=cluster.master,
        conf=ONE_CORE_EACH | conf,
    )
    lines = values(3000, **{f"slow_once@{job.at('slow')}": [1551]})
    fill_topic(broker, job.topic, lines, 2)
    return job, lines


def hangs(job: Job, broker: Broker | None = None) -> None:
    """Wait until a task hangs in the middle of its batch, and letters of it are in the topic."""
    slow = Path(job.at("slow"))
    wait_for(lambda: slow.exists() and slow.read_text().endswith("\n"), "The task that hangs")
    if broker is not None:
        wait_for(lambda: len(broker.read_all(job.dead)) > LETTERS_A_BATCH, "Letters of that task")


def hung(job: Job) -> psutil.Process:
    """The Python worker that hangs."""
    return psutil.Process(int(Path(job.at("slow")).read_text()))


def counted_once(job: Job, broker: Broker, lines: list[bytes]) -> None:
    """P1, P3, P4: letters came twice, and count once; every record is in one place."""
    counted = Counted(job, broker)
    assert len(broker.read_all(job.dead)) > len(counted.letters)
    counted.holds(lines)


def goes_on(job: Job, running: Running) -> None:
    """Let the task that hung go on, if it still lives, and wait for the end of the job."""
    Path(job.at("slow.go")).touch()
    assert running.ended() == 0, running.said()[-5000:]


def test_an_executor_is_killed(
    cluster: Cluster, broker: Broker, topic: MakeTopic, tmp_path: Path
) -> None:
    """P1, P3, P4: SIGKILL of every executor; their tasks are tried again, within the job."""
    job, lines = kafka_job(cluster, broker, topic, tmp_path)
    running = Running(job)
    hangs(job, broker)

    killed = list(cluster.executors())
    assert killed
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    wait_for(lambda: set(cluster.executors()) - set(killed), "Another executor")
    goes_on(job, running)

    counted_once(job, broker, lines)


def test_a_worker_is_killed(
    cluster: Cluster, broker: Broker, topic: MakeTopic, tmp_path: Path
) -> None:
    """P1, P3, P4: SIGKILL of the worker and the executor whose task hangs; the others go on."""
    job, lines = kafka_job(cluster, broker, topic, tmp_path)
    running = Running(job)
    hangs(job, broker)

    executors = cluster.executors()
    pid = next(one.pid for one in hung(job).parents() if one.pid in executors)
    executors[pid].process.kill()
    os.kill(pid, signal.SIGKILL)
    goes_on(job, running)

    assert len([one for one in cluster.workers if one.running]) == 1
    counted_once(job, broker, lines)


def test_the_driver_is_killed(
    cluster: Cluster, broker: Broker, topic: MakeTopic, tmp_path: Path
) -> None:
    """P1, P3, P4: SIGKILL of the driver in the middle of a batch; the next start loses nothing."""
    job, lines = kafka_job(cluster, broker, topic, tmp_path)
    running = Running(job)
    hangs(job, broker)

    for pid in reversed(Path(job.at("pids")).read_text().split()):
        os.kill(int(pid), signal.SIGKILL)
    assert running.ended() == -9
    Path(job.at("slow.go")).touch()
    again = Running(job)
    assert again.ended() == 0, again.said()[-5000:]

    counted_once(job, broker, lines)


def test_a_task_is_speculated(cluster: Cluster, tmp_path: Path) -> None:
    """P3, P4: two attempts of a task deliver the same letters; they count once, and so do records.

    The first attempt hangs, its copy on the other host wins, and then the loser wakes up and
    stores its letters too, before Spark ends its process.
    """
    job = Job(root=str(tmp_path), slices=2, trigger="on")
    lines = values(2000, **{f"slow_once@{job.at('slow')}": [1990]})
    fill_folder(job, lines, files=1)
    conf = ONE_CORE_EACH | SPECULATION
    running = Running(msgspec.structs.replace(job, master=cluster.master, conf=conf))
    hangs(job)
    wait_for(lambda: len(letter_files(job)) == 2, "The letters of both tasks")
    wait_for(Path(job.at("out/0/_SUCCESS")).exists, "The end of the batch")
    assert not Path(job.at("slow.gone")).exists()
    Path(job.at("slow.go")).touch()
    wait_for(lambda: len(letter_files(job)) == 3, "The letters of the loser")
    running.child.send(signal.SIGTERM)
    assert running.ended() == 0, running.said()

    Counted(job).holds(lines)


def test_speculation_over_kafka(
    cluster: Cluster, broker: Broker, topic: MakeTopic, tmp_path: Path
) -> None:
    """P3, P4: the same with Kafka on both sides: both attempts send letters, with the same ids."""
    job, lines = kafka_job(cluster, broker, topic, tmp_path, **SPECULATION)
    running = Running(job)
    hangs(job, broker)

    wait_for(Path(job.at("out/1/_SUCCESS")).exists, "The end of the batch that hung")
    # Its first attempt still hangs: a copy has done the work.
    assert not Path(job.at("slow.gone")).exists()
    goes_on(job, running)

    counted_once(job, broker, lines)
