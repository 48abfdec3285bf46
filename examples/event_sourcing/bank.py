"""What the scripts here share: the topics, and a session that reads them and keeps states."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

HERE = Path(__file__).parent
OUT = Path(os.environ.get("OUT", "build/event_sourcing"))
SERVERS = os.environ.get("KAFKA", "localhost:9092")
PREFIX = os.environ.get("PREFIX", "")  # of the topics' names

COMMANDS = PREFIX + "commands"
VALID, INVALID = PREFIX + "valid-operation", PREFIX + "invalid-operation"
CATEGORIES = PREFIX + "categories"

_STATES = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def session() -> SparkSession:
    """A session that knows Kafka; pyspark brings no connector."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]")
    builder = builder.config("spark.sql.shuffle.partitions", "4")
    builder = builder.config("spark.sql.streaming.stateStore.providerClass", _STATES)
    # A query that waits for gaps would otherwise go from empty batch to empty batch, and never end.
    builder = builder.config("spark.sql.streaming.noDataMicroBatches.enabled", "false")
    if "KAFKA_JARS" in os.environ:
        builder = builder.config("spark.jars", os.environ["KAFKA_JARS"])
    else:
        connector = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0"
        builder = builder.config("spark.jars.packages", connector)
    return builder.getOrCreate()


def stream(spark: SparkSession, topic: str) -> DataFrame:
    """The records of a topic from its beginning."""
    return (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", SERVERS)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("includeHeaders", "true")
        .option("maxOffsetsPerTrigger", os.environ.get("PER_BATCH", "10000"))
        .load()
    )
