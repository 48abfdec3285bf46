r"""Commands that were made for an older version, sent again for the newest: how conflicts end.

export KAFKA=localhost:9092 PYTHONPATH=examples/event_sourcing
PYSPARK_SUBMIT_ARGS="--packages org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0 pyspark-shell" \
sparkguard dlq redrive --config examples/event_sourcing/commands.yaml --stage decide \
    --where "exception_type like '%ConflictError'" --through refresh:resubmit \
    --schema "command_id string, account string, kind string, amount string, category string"

Two commands of one account that both lost get the same version, so one of them loses again, and
goes with the next redrive: nobody decides here which of them is to come first.
"""

from __future__ import annotations

from bank import COMMANDS, INVALID, SERVERS, VALID
from pyspark.sql import DataFrame
from pyspark.sql import functions as f


def resubmit(commands: DataFrame) -> None:
    """Sends commands again, for the version that their account had in its last operation."""
    answers = (
        commands.sparkSession.read.format("kafka")
        .option("kafka.bootstrap.servers", SERVERS)
        .option("subscribe", f"{VALID},{INVALID}")
        .load()
        .select(f.from_json(f.col("value").cast("string"), _ANSWER).alias("answer"))
        .select("answer.*")
    )
    newest = answers.groupBy("account").agg(f.max("version").alias("expected_version"))
    (
        # One that was answered long ago, and came again when its id was forgotten, stays away.
        commands.join(answers, "command_id", "left_anti")
        .join(newest, "account", "left")
        .na.fill(0, ["expected_version"])
        .select(f.col("account").alias("key"), f.to_json(f.struct("*")).alias("value"))
        .write.format("kafka")
        .option("kafka.bootstrap.servers", SERVERS)
        .option("topic", COMMANDS)
        .save()
    )


_ANSWER = "command_id string, account string, version long"
