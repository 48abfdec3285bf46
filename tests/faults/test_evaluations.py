"""A batch that is evaluated twice, or in part, or in two branches of one plan."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.conftest import MakeTopic
from tests.faults.harness import Counted, fill_folder, fill_topic, values
from tests.faults.job import Job, build, source
from tests.faults.stages import decode, price, worth_it
from tests.support.kafka import Broker


def kafka_job(broker: Broker, topic: MakeTopic, root: Path, **more: Any) -> Job:
    """A job over a topic of two partitions, letters in files."""
    return Job(root=str(root), servers=broker.servers, topic=topic(2), **more)


@pytest.mark.parametrize("trick", ["twice", "partly"])
def test_of_a_topic(
    spark: SparkSession, broker: Broker, topic: MakeTopic, trick: str, tmp_path: Path
) -> None:
    """P3, P4, P11: of several evaluations of a batch the fullest counts, by offsets."""
    job = kafka_job(broker, topic, tmp_path, batch_trick=trick)
    lines = values(3000)
    fill_topic(broker, job.topic, lines, 2)
    guard = job.guard()

    guard.run(build(spark, job, guard))

    Counted(job).holds(lines)


def test_behind_a_sink_of_spark(
    spark: SparkSession, broker: Broker, topic: MakeTopic, tmp_path: Path
) -> None:
    """P4: without a batch function the accounts are stored after each commit, all of them."""
    job = kafka_job(broker, topic, tmp_path, writer="parquet")
    lines = values(3000)
    fill_topic(broker, job.topic, lines, 2)
    guard = job.guard()

    guard.run(build(spark, job, guard))

    Counted(job).holds(lines)
    assert len(guard.ledger.batches("orders")) == 3


def run_frame(spark: SparkSession, job: Job, make: Any) -> None:
    """Run a query over what `make` gives for the guard and the source."""
    guard = job.guard()
    frame: DataFrame = make(guard, source(spark, job))

    def start() -> Any:
        return (
            frame.writeStream.format("parquet")
            .option("checkpointLocation", job.at("checkpoint"))
            .trigger(availableNow=True)
            .start(job.at("out"))
        )

    guard.run(start)


def test_a_union_with_itself(
    spark: SparkSession, broker: Broker, topic: MakeTopic, tmp_path: Path
) -> None:
    """P3, P4: both branches evaluate every record; it is counted and kept once."""
    job = kafka_job(broker, topic, tmp_path)
    lines = values(2000)
    fill_topic(broker, job.topic, lines, 2)

    def both(guard: Any, frame: DataFrame) -> DataFrame:
        flowed = frame.transform(guard.flow(decode, price, worth_it, name="orders"))
        return flowed.union(flowed)

    run_frame(spark, job, both)

    counted = Counted(job)
    assert len(counted.out) == 2 * len(set(counted.out))
    counted.out = sorted(set(counted.out))
    counted.holds(lines)


def test_a_join_of_two_halves(
    spark: SparkSession, broker: Broker, topic: MakeTopic, tmp_path: Path
) -> None:
    """P4: two uses of a flow that read different records are added."""
    job = kafka_job(broker, topic, tmp_path)
    lines = values(2000)
    fill_topic(broker, job.topic, lines, 2)

    def joined(guard: Any, frame: DataFrame) -> DataFrame:
        flow = guard.flow(decode, price, worth_it, name="orders")
        even = frame.where("partition = 0").transform(flow)
        odd = frame.where("partition = 1").transform(flow)
        return even.join(odd.selectExpr("id - 1 id", "total other"), "id")

    run_frame(spark, job, joined)

    counted = Counted(job)
    bad = {n for n in range(2000) if n % 100 in (7, 13)}
    gone = bad | {n for n in range(2000) if n % 10 == 5}
    assert sorted(counted.out) == [n for n in range(0, 2000, 2) if n + 1 not in gone]
    assert sorted(counted.letters.values()) == sorted(lines[n] for n in bad)
    assert counted.total.records_in == 2000
    assert counted.total.records_out == 2000 - len(gone)
    assert counted.total.balanced


def test_a_limit(spark: SparkSession, tmp_path: Path) -> None:
    """P3, P11: a batch frame of which a few rows are taken is not counted as if it had been read.

    The letters that such a part delivers are those of the whole, by their ids.
    """
    job = Job(root=str(tmp_path))
    # More than the buffers between Spark and its worker hold.
    lines = values(200_000)
    fill_folder(job, lines, files=1)
    guard = job.guard()
    flow = guard.flow(decode, price, worth_it, name="orders")
    frame = spark.read.text(job.at("in")).transform(flow)

    assert len(frame.limit(3).collect()) == 3
    assert frame.first() is not None
    assert not frame.isEmpty()
    assert guard.ledger.total("orders").records_in == 0

    assert frame.count() == 200_000 - 4000 - 20_000
    total = guard.ledger.total("orders")
    assert total.records_in == 200_000
    assert total.balanced
    letters = Counted(job).letters
    assert sorted(letters.values()) == sorted(
        lines[n] for n in range(200_000) if n % 100 in (7, 13)
    )
