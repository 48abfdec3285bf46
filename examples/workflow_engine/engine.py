"""A workflow engine: results of parallel tasks are merged into their executions, each once.

KAFKA=localhost:9092 python examples/workflow_engine/workers.py
KAFKA=localhost:9092 python examples/workflow_engine/engine.py

It runs until Ctrl-C. Kill it with ``kill -9`` and start it again, as often as you like: each
execution ends with exactly its results, and in the topic `executions` no version of one is ever
followed by a lower one. `naive.py` does the same work in the usual way, and loses some of it.

Why a replay cannot be seen in the topic: a batch that was cut short is computed again from the
same offsets, the same states and the same time (Spark notes offsets and time before a batch, and
takes the states of the batch before), so it emits the same again. But sent event by event that
would read v5 v6 v7 v5 v6 v7. So of each execution only the newest line of a batch is sent: a replay
says v7 once more, and not a line of the next batch is sent before all of this one are acknowledged.
This holds as long as one engine at a time runs on a checkpoint.
"""

from __future__ import annotations

import os
import sys
from datetime import datetime, timedelta
from pathlib import Path

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import max_by, struct
from pyspark.sql.streaming.query import StreamingQuery

import sparkguard as sg

HERE = Path(__file__).parent
OUT = Path(os.environ.get("OUT", "build/workflow_engine"))
SERVERS = os.environ.get("KAFKA", "localhost:9092")
RESULTS = os.environ.get("RESULTS", "results")
EXECUTIONS = os.environ.get("EXECUTIONS", "executions")
BATCH = os.environ.get("BATCH", "10000")


class Result(msgspec.Struct):
    """What a worker tells: a task of an execution is done."""

    id: str  # the same if it is told again
    execution: str
    task: int
    of: int  # so many tasks has the execution
    took: int
    patience: float  # seconds without news after which nobody waits any longer


class Execution(msgspec.Struct):
    """What is known of an execution; it is stored, and sent on."""

    execution: str
    status: str = "running"  # completed, timed_out
    version: int = 0
    tasks: list[int] = []  # in the order in which they were merged
    took: int = 0
    given_up: datetime | None = None
    late: list[int] = []  # came when it was over already


def give_up(state: Execution | None, now: datetime) -> sg.Update[Execution, Execution]:
    """Ends an execution of which there was no news for too long."""
    if state is None or state.status != "running":
        return sg.Update(state=state)
    state.version += 1
    state.status, state.given_up = "timed_out", now
    return sg.Update(state=state, emit=[state])


decode = sg.deserialize(sg.Json(Result), name="decode")


@sg.stateful(key="execution", state=Execution, event_id="id", on_timer=give_up)
def advance(state: Execution | None, result: Result) -> sg.Update[Execution, Execution]:
    """Merges one result; of what comes twice, or raises, nothing is merged."""
    if not 0 <= result.task < result.of:
        raise ValueError(f"execution {result.execution} has no task {result.task}")
    state = state or Execution(result.execution)
    state.version += 1
    if state.status != "running":
        state.late.append(result.task)  # what is over stays over
        return sg.Update(state=state, emit=[state])
    state.tasks.append(result.task)
    state.took += result.took
    if len(state.tasks) == result.of:
        state.status = "completed"
        return sg.Update(state=state, emit=[state], timer="off")
    return sg.Update(state=state, emit=[state], timer=timedelta(seconds=result.patience))


# Keyed: all lines of an execution are in one partition, in the order of sending.
out = sg.produce(name="out", topic=EXECUTIONS, key="execution", value=sg.Json())


def newest(batch: DataFrame) -> DataFrame:
    """The last line of each execution in a batch."""
    last = max_by(struct(*batch.columns), "version").alias("last")
    return batch.groupBy("execution").agg(last).select("last.*")


def session() -> SparkSession:
    """A session that knows Kafka and keeps states in RocksDB."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    provider = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    builder = (
        SparkSession.builder.master("local[2]")
        .config("spark.sql.shuffle.partitions", "2")  # the checkpoint keeps this number
        .config("spark.sql.streaming.stateStore.providerClass", provider)
    )
    if "KAFKA_JARS" in os.environ:
        builder = builder.config("spark.jars", os.environ["KAFKA_JARS"])
    else:
        connector = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0"
        builder = builder.config("spark.jars.packages", connector)
    return builder.getOrCreate()


def main() -> None:
    """Runs until it is stopped; then tells what became of the results so far."""
    spark = session()
    guard = sg.Guard.from_yaml(HERE / "guard.yaml")
    flow = guard.flow(decode, name="results", carry=sg.ORIGIN)
    engine, production = guard.stateful(advance), guard.produce(out)

    def publish(batch: DataFrame, batch_id: int) -> None:
        production(newest(batch), batch_id)

    def build() -> StreamingQuery:
        results = (
            spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", SERVERS)
            .option("subscribe", RESULTS)
            .option("startingOffsets", "earliest")
            .option("includeHeaders", "true")  # without it letters have none either
            .option("maxOffsetsPerTrigger", BATCH)
            .load()
        )
        return (
            results.transform(flow)
            .transform(engine)
            .writeStream.foreachBatch(publish)
            .option("checkpointLocation", str(OUT / "checkpoint"))
            .trigger(processingTime="1 second")  # so late may a timer be
            .start()
        )

    guard.run(build)

    for name in ("results", "advance", "out"):
        account = guard.ledger.total(name)
        print(
            f"{name}: {account.records_in} in = {account.records_out} out"
            f" + {account.total('skipped')} skipped"
            f" + {account.total('dead_lettered')} dead-lettered"
        )


if __name__ == "__main__":
    main()
