"""Where letters rest is down: the broker, the topic, the disk."""

import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import sparkguard as sg
from sparkguard.sinks.file import FileSink
from tests.conftest import MakeTopic
from tests.faults.harness import (
    Counted,
    Supervised,
    fill_folder,
    fill_topic,
    finish,
    letter_files,
    values,
    wait_for,
)
from tests.faults.job import Job, build
from tests.support.kafka import Broker

OUTAGE_SECONDS = 20
AT_ONCE: dict[str, Any] = {
    "restart": {"max_restarts": 100, "max_per_hour": 100, "backoff": {"initial": "200ms"}}
}


def test_the_broker_is_away(spark: SparkSession, tmp_path: Path) -> None:
    """P1, P9: stopped for 20 s in the middle, and nothing is lost or dead-lettered for it."""
    lines = values(20_000)
    with Broker() as broker:
        job = Job(
            root=str(tmp_path),
            servers=broker.servers,
            topic=broker.create_topic("in", 2),
            dead=broker.create_topic("dead"),
            trigger="on",
            settings=AT_ONCE,
        )
        fill_topic(broker, job.topic, lines[:15_000], 2)
        running = Supervised(spark, job)
        wait_for(lambda: running.records_in, "The first batch")
        broker.stop()
        seen = running.records_in
        time.sleep(OUTAGE_SECONDS)
        broker.start()
        fill_topic(broker, job.topic, lines[15_000:], 2)
        wait_for(lambda: running.records_in == len(lines), "The last batch")
        running.stop()

        assert seen < 15_000
        Counted(job, broker).holds(lines)


def test_the_topic_is_deleted(
    spark: SparkSession,
    broker: Broker,
    topic: MakeTopic,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """P1, P2: without its topic the query fails with a sentence, and goes on once there is one."""
    job = Job(
        root=str(tmp_path),
        servers=broker.servers,
        topic=topic(2),
        dead=topic(),
        # So long librdkafka waits for a topic to appear.
        client={"topic.metadata.propagation.max.ms": 1000, "delivery.timeout.ms": 5000},
        trigger="on",
        settings=AT_ONCE,
    )
    lines = values(4000)
    fill_topic(broker, job.topic, lines[:2000], 2)
    running = Supervised(spark, job)
    wait_for(lambda: running.records_in == 2000, "The first half")
    before = broker.read_all(job.dead)

    broker.delete_topic(job.dead)
    fill_topic(broker, job.topic, lines[2000:], 2)
    wait_for(lambda: running.starts > 1, "A restart")
    assert running.records_in == 2000
    assert f"letters for topic '{job.dead}' were not acknowledged" in caplog.text
    broker.create_topic(job.dead)
    wait_for(lambda: running.records_in == len(lines), "The second half")
    running.stop()

    after = {(letter.header("sparkguard.id"), letter.value) for letter in broker.read_all(job.dead)}
    assert len(before) == 40
    assert sorted(value or b"" for _, value in after) == sorted(
        line for n, line in enumerate(lines) if n >= 2000 and n % 100 in (7, 13)
    )
    assert job.guard().ledger.total("orders").balanced


def test_the_disk_is_full(spark: SparkSession, tmp_path: Path) -> None:
    """P1, P2: a worker that may write no file fails its task; the restart loses nothing."""
    job = Job(root=str(tmp_path), settings=AT_ONCE)
    lines = values(3000, **{f"full_disk@{job.at('full')}": [1500]})
    fill_folder(job, lines, files=3)
    running = Supervised(spark, job)

    running.ended()

    assert Path(job.at("full")).exists()
    assert running.starts == 2
    Counted(job).holds(lines)


def test_the_storage_is_down(spark: SparkSession, tmp_path: Path) -> None:
    """P1, P2: the same with a filesystem of fsspec; the ledger goes on where it stood."""
    sink = {"type": "file", "path": f"flaky://{tmp_path}/dead"}
    job = Job(root=str(tmp_path), settings={**AT_ONCE, "sinks": {"default": sink}})
    lines = values(3000)
    fill_folder(job, lines, files=3)
    guard = job.guard()
    start = build(spark, job, guard)
    down = Path(job.at("dead.down"))
    starts: list[int] = []

    def flaky() -> Any:
        starts.append(1)
        if len(starts) == 3:
            down.unlink()
        query = start()
        if len(starts) == 1:
            down.touch()
        return query

    guard.run(flaky)

    assert len(starts) == 3
    assert Path(job.at("met")).exists()
    assert letter_files(job)
    Counted(job).holds(lines)


def test_a_sink_that_refuses_for_good(spark: SparkSession, tmp_path: Path) -> None:
    """P2: what no restart heals fails the query at once, and no record is skipped."""
    job = Job(root=str(tmp_path))
    lines = values(1000)
    fill_folder(job, lines, files=1)
    guard = job.guard()
    # Its own folder is the input: letters of letters.
    guard.sinks["default"] = FileSink(path=job.at("in"))

    with pytest.raises(sg.StageFailedError, match="own folder") as raised:
        guard.run(build(spark, job, guard))

    assert raised.value.action == "fail"
    finish(spark, job)
    Counted(job).holds(lines)
