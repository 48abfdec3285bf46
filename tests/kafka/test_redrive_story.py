"""From the failure to the proof: look, fix the function, send back, see it come through."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import DataFrame, SparkSession
from typer.testing import CliRunner

import sparkguard as sg
from sparkguard.cli import app
from sparkguard.config.load import load
from tests.conftest import MakeTopic
from tests.support.kafka import Broker, Message

SETTINGS = """
app: orders
state: {{path: state}}
sinks:
  default: {{type: kafka, bootstrap_servers: "{servers}", topic: {dead}}}
redrive: {{bootstrap_servers: "{servers}", topic: {again}}}
"""
RATES = {"EUR": 1.0, "USD": 0.9}


class Order(msgspec.Struct):
    id: int
    currency: str


class Priced(msgspec.Struct):
    id: int
    total: float


decode = sg.deserialize(sg.Json(Order), name="decode")


def priced(rates: dict[str, float]) -> Any:
    """The stage with a table of rates; a currency that it has not is a failure."""

    @sg.map(name="price")
    def price(order: Order) -> Priced:
        if order.currency not in rates:
            raise ValueError(f"no rate for {order.currency}")
        return Priced(order.id, 10 * rates[order.currency])

    return price


def run(spark: SparkSession, topics: dict[str, str], servers: str, rates: dict[str, float]) -> None:
    """The query, over its input and what is sent back, up to the end of both."""
    # Spark's own working directory is another one.
    folder = Path.cwd()
    guard = sg.Guard(load("guard.yaml"))
    frame = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", f"{topics['in']},{topics['again']}")
        .option("startingOffsets", "earliest")
        .option("includeHeaders", "true")
        .load()
    )

    @sg.foreach_batch
    def store(batch: DataFrame, batch_id: int) -> None:
        batch.write.mode("overwrite").parquet(f"{folder}/out/{batch_id}")

    flow = guard.flow(decode, priced(rates), name="orders")
    guard.run(
        lambda: (
            frame.transform(flow)
            .writeStream.foreachBatch(guard.foreach_batch(store))
            .option("checkpointLocation", f"{folder}/checkpoint")
            .trigger(availableNow=True)
            .start()
        )
    )


def dlq(*arguments: str) -> Any:
    """What a command answers to a program."""
    done = CliRunner().invoke(app, ["dlq", *arguments, "--config", "guard.yaml", "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_the_story(
    spark: SparkSession,
    broker: Broker,
    topic: MakeTopic,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Failed, looked at, fixed, sent back, and each record's end is told."""
    monkeypatch.chdir(tmp_path)
    topics = {"in": topic(2), "again": topic(2), "dead": topic(2)}
    Path("guard.yaml").write_text(
        SETTINGS.format(servers=broker.servers, dead=topics["dead"], again=topics["again"])
    )
    currencies = ("EUR", "USD", "CHF", "XXX")
    values = [b'{"id": %d, "currency": "%s"}' % (n, currencies[n % 4].encode()) for n in range(100)]
    values.append(b'{"id": null, "currency": "EUR"}')
    broker.produce(topics["in"], [Message(value=value, partition=0) for value in values])

    run(spark, topics, broker.servers, RATES)

    groups = {one["exception"]: one for one in dlq("ls")["groups"]}
    wrong = groups["ValueError"]
    assert (wrong["count"], wrong["stages"], len(groups)) == (50, ["price"], 2)
    (shown,) = dlq("show", wrong["fingerprint"])
    assert shown["message"] == "no rate for XXX"

    fixed = {**RATES, "CHF": 1.1}
    chosen = [wrong["fingerprint"], "--where", "message like '%CHF'"]
    assert dlq("redrive", *chosen, "--dry-run")["letters"]["send"] == 25
    assert broker.read_all(topics["again"]) == []
    sent = dlq("redrive", *chosen)
    other = dlq("redrive", wrong["fingerprint"])
    assert (sent["sent"], other["sent"], other["already"]) == (25, 25, 25)
    at = ("--checkpoint", "checkpoint")
    waiting = {one["id"]: one["outcomes"]["waiting"] for one in dlq("redrives", *at)["redrives"]}
    assert waiting == {sent["redrive"]: 25, other["redrive"]: 25}

    run(spark, topics, broker.servers, fixed)

    told = {one["id"]: one for one in dlq("redrives", *at)["redrives"]}
    for redrive, outcome in ((sent, "resolved"), (other, "failed_again")):
        one = told[redrive["redrive"]]
        assert (one["letters"], one["outcomes"][outcome]) == (25, 25)
    assert dlq("redrives", sent["redrive"], *at, "--resolve")["marked"] == 25
    left = {one["exception"]: one["count"] for one in dlq("ls")["groups"]}
    assert left == {"ValueError": 50, "msgspec.ValidationError": 1}
    assert dlq("sql", "select count(*) as n from letters where replays = 1")["rows"] == [{"n": 25}]
    out = [row.id for row in spark.read.parquet(f"{tmp_path}/out/*").collect()]
    assert sorted(out) == [n for n in range(100) if n % 4 != 3]
    audit = ["audit", "--config", "guard.yaml", *at, "--output", "out", "--json"]
    done = CliRunner().invoke(app, audit)
    assert done.exit_code == 0, done.output
    checks = {one["kind"]: one for one in json.loads(done.stdout)["checks"]}
    assert (checks["source"]["expected"], checks["output"]["found"]) == (151, 75)
