"""The same work as many do it: the states live in a topic, and two queries share the results.

KAFKA=localhost:9092 python examples/workflow_engine/workers.py
KAFKA=localhost:9092 python examples/workflow_engine/naive.py

Each query reads the newest states, merges its results into them, and writes them back. No line of
this is wrong by itself: what comes twice is merged once, broken results are left out, and one query
alone (``WRITERS=1``) loses nothing. But what the other one writes between reading and writing is
overwritten: executions lose results for good, and no exception tells. In `engine.py` a state has
one owner.
"""

from __future__ import annotations

import os

from engine import BATCH, OUT, RESULTS, SERVERS, session
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery
from workers import PARTITIONS, make_topics, states_topic

STATES = os.environ.get("NAIVE", "executions-naive")
RESULT = "id string, execution string, task int, of int"
STATE = "execution string, tasks array<int>"
KAFKA = {"kafka.bootstrap.servers": SERVERS}
WRITERS = int(os.environ.get("WRITERS", "2"))


def parsed(schema: str) -> Column:
    """The value of a Kafka record."""
    return f.from_json(f.col("value").cast("string"), schema)


def states(spark: SparkSession) -> DataFrame:
    """The newest state of each execution."""
    lines = spark.read.format("kafka").options(subscribe=STATES, **KAFKA).load()
    newest = lines.groupBy("key").agg(f.max_by("value", "offset").alias("value"))
    return newest.select(parsed(STATE).alias("state")).select("state.*")


def merge(batch: DataFrame, _batch_id: int) -> None:
    """Merges a batch of results into the newest states, and writes those back."""
    results = (
        batch.select(parsed(RESULT).alias("result"))
        .select("result.*")
        .where("task < of")  # neither broken nor of no task
        .groupBy("execution")
        .agg(f.collect_set("task").alias("more"))
    )
    known = f.coalesce("tasks", f.array().cast("array<int>"))
    merged = results.join(states(batch.sparkSession), "execution", "left").select(
        "execution", f.array_union(known, "more").alias("tasks")
    )
    lines = merged.select(
        f.col("execution").alias("key"), f.to_json(f.struct("execution", "tasks")).alias("value")
    )
    lines.write.format("kafka").options(topic=STATES, **KAFKA).save()


def main() -> None:
    """Runs both queries until everything that is in the topic now has been merged."""
    make_topics(states_topic(STATES))
    spark = session()

    def query(number: int) -> StreamingQuery:
        mine = list(range(number, PARTITIONS, WRITERS))
        results = spark.readStream.format("kafka").options(**KAFKA)
        return (
            results.option("assign", f'{{"{RESULTS}": {mine}}}')
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", BATCH)
            .load()
            .writeStream.foreachBatch(merge)
            .option("checkpointLocation", str(OUT / f"naive-{number}-of-{WRITERS}"))
            .trigger(availableNow=True)
            .start()
        )

    for running in [query(number) for number in range(WRITERS)]:
        running.awaitTermination()

    ended = states(spark).where("execution like 'e%'")
    short = ended.where("size(tasks) < 10").count()
    print(f"{short:,} of {ended.count():,} executions have lost results.")


if __name__ == "__main__":
    main()
