"""The broker goes while rows are sent to it."""

import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import sparkguard as sg
from tests.faults.producing import expected, letters, made, orders, out
from tests.support.kafka import Broker


def test_an_outage_is_no_letter(spark: SparkSession, tmp_path: Path) -> None:
    """P9: a broker that is down asks for a restart, whatever the handler; then all arrive."""
    guard = made(tmp_path, out={"handler": "dead_letter"})
    with Broker() as broker:
        name = broker.create_topic("orders", 2)
        production = guard.produce(out(broker, topic=name, producer={"delivery.timeout.ms": 3_000}))
        production.write(orders(spark, 10))
        broker.stop()
        with pytest.raises(sg.StageFailedError, match="Stage 'out'") as caught:
            production.write(orders(spark))
        assert caught.value.action == "restart"
        assert caught.value.facts["cause"] == "transient"
        broker.start()
        production.write(orders(spark))
        assert {m.key: m.value for m in broker.read_all(name)} == expected()
    assert letters(tmp_path, "value") == []


def test_an_outage_with_a_full_queue(spark: SparkSession, tmp_path: Path) -> None:
    """P9: it ends with the delivery timeout, and not with one for each queue of rows."""
    guard = made(tmp_path)
    with Broker() as other:
        limits = {"delivery.timeout.ms": 3_000, "queue.buffering.max.messages": 50}
        name = other.create_topic("orders", 1)
        production = guard.produce(out(other, topic=name, producer=limits))
        production.write(orders(spark, 10))
        other.kill()
        began = time.monotonic()
        with pytest.raises(sg.StageFailedError) as caught:
            production.write(orders(spark, 20_000))
        assert time.monotonic() - began < 30
    assert (caught.value.action, caught.value.facts["cause"]) == ("restart", "transient")
