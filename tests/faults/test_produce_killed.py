"""Workers and the driver are killed while rows go to Kafka."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.conftest import MakeTopic
from tests.faults.harness import Counted, Running, fill_topic, finish, values
from tests.faults.job import Job
from tests.support.kafka import Broker

LINES = values(3000)


def made(broker: Broker, topic: MakeTopic, folder: Path, **more: str) -> Job:
    """A job from topic to topic, its input filled."""
    job = Job(root=str(folder), servers=broker.servers, topic=topic(2), sent=topic(3), **more)  # type: ignore[arg-type]
    fill_topic(broker, job.topic, LINES, 2)
    return job


def exact(job: Job, broker: Broker) -> None:
    """Every record is in one place, and both accounts say so."""
    counted = Counted(job, broker)
    counted.holds(LINES)
    sent = job.guard().ledger.total("out")
    assert sent.balanced
    assert (sent.records_in, sent.records_out) == (len(counted.out), len(counted.out))


@pytest.mark.parametrize("point", ["sending", "settled"])
def test_the_driver(
    spark: SparkSession, broker: Broker, topic: MakeTopic, tmp_path: Path, point: str
) -> None:
    """P1, P4: in the middle of a batch, and between its accounts and its commit."""
    job = made(broker, topic, tmp_path, fault=point)

    first = Running(job)
    assert first.ended() == -9, first.said()
    assert Path(job.at("struck")).exists()
    finish(spark, job)

    exact(job, broker)
    if point == "settled":
        # The whole batch was sent, and comes again.
        assert len(broker.read_all(job.sent)) > len(LINES)


def test_a_worker(broker: Broker, topic: MakeTopic, tmp_path: Path) -> None:
    """P1, P4: the task is tried again; what its first attempt sent counts once."""
    job = made(broker, topic, tmp_path, fault="sending", fault_kills="worker", master="local[2,4]")

    running = Running(job)

    assert running.ended() == 0, running.said()
    assert Path(job.at("struck")).exists()
    exact(job, broker)
