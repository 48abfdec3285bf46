"""The driver is killed with SIGKILL, and started again."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.conftest import MakeTopic
from tests.faults.harness import Counted, Running, fill_folder, fill_topic, finish, values
from tests.faults.job import Job
from tests.support.kafka import Broker


@pytest.mark.parametrize("point", ["before_flush", "after_flush", "settled"])
def test_files(spark: SparkSession, point: str, tmp_path: Path) -> None:
    """P1, P2, P3, P4: before and after the acknowledgement, and between it and the commit."""
    lines = values(3000)
    job = Job(root=str(tmp_path), fault=point)
    fill_folder(job, lines, files=3)

    first = Running(job)
    assert first.ended() == -9, first.said()
    assert Path(job.at("struck")).exists()
    finish(spark, job)

    Counted(job).holds(lines)


def test_kafka(spark: SparkSession, broker: Broker, topic: MakeTopic, tmp_path: Path) -> None:
    """P1, P3, P4: letters in a topic that are sent again count once by their id."""
    lines = values(3000)
    job = Job(
        root=str(tmp_path),
        servers=broker.servers,
        topic=topic(2),
        dead=topic(),
        fault="after_flush",
    )
    fill_topic(broker, job.topic, lines, 2)

    first = Running(job)
    assert first.ended() == -9, first.said()
    assert Path(job.at("struck")).exists()
    finish(spark, job)

    assert len(broker.read_all(job.dead)) > 60
    Counted(job, broker).holds(lines)


def test_between_commit_and_count(
    spark: SparkSession,
    broker: Broker,
    topic: MakeTopic,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """P4: behind another sink the batch's counts are lost, and said to be; `in` is known."""
    lines = values(3000)
    job = Job(
        root=str(tmp_path),
        servers=broker.servers,
        topic=topic(2),
        fault="committed",
        writer="parquet",
    )
    fill_topic(broker, job.topic, lines, 2)

    first = Running(job)
    assert first.ended() == -9, first.said()
    finish(spark, job)

    assert "counts_lost" in caplog.text
    counted = Counted(job)
    batches = job.guard().ledger.batches("orders")
    lost = [batch for batch in batches if batch.counts_lost]
    assert [(batch.batch_id, batch.records_in) for batch in lost] == [(1, 1000)]
    assert counted.total.records_in == 3000
    assert len(counted.letters) == 60
    assert len(counted.out) == len(set(counted.out)) == 3000 - 60 - 300
