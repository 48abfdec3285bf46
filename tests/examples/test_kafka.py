"""The Kafka example on a real broker: ids, bytes and headers are compared, not counts."""

import json
from typing import Any
from uuid import uuid4

from tests.examples.conftest import Ids, RunExample
from tests.support.jars import connector_jars
from tests.support.kafka import Broker


def test_kafka(run_example: RunExample, broker: Broker) -> None:
    """P1: good orders in one topic, bad ones whole in the other, tombstones counted as skipped."""
    orders, priced, dead = (f"{name}-{uuid4().hex[:8]}" for name in ("orders", "priced", "dead"))
    env: dict[str, Any] = {
        "KAFKA": broker.servers,
        "KAFKA_JARS": ",".join(map(str, connector_jars())),
        "ORDERS": orders,
        "PRICED": priced,
        "DEAD": dead,
    }
    run_example("e02_kafka/fill.py", **env)
    printed = run_example("e02_kafka/pipeline.py", **env)

    assert "1000 in = 970 out + 0 filtered + 10 skipped + 20 dead-lettered" in printed
    out = {message.key: json.loads(message.value or b"") for message in broker.read_all(priced)}
    good = [number for number in range(1000) if number % 100 not in {7, 13, 21}]
    assert sorted(value["id"] for value in out.values()) == good
    assert all(key == b"k%d" % value["id"] for key, value in out.items())

    sources = {message.key: message for message in broker.read_all(orders)}
    letters = broker.read_all(dead)
    bad = {b"k%d" % number for number in range(1000) if number % 100 in {7, 13}}
    assert len(letters) == len(bad)
    assert {letter.key for letter in letters} == bad
    for letter in letters:
        source = sources[letter.key]
        assert letter.value == source.value
        assert letter.headers[: len(source.headers)] == source.headers
        assert letter.header("sparkguard.topic") == orders.encode()
        assert letter.header("sparkguard.partition") == str(source.partition).encode()
        assert letter.header("sparkguard.offset") == str(source.offset).encode()


def test_produce(run_example: RunExample, broker: Broker, ids: Ids) -> None:
    """P6: the order that is too large is the letter, and every other one is in the topic."""
    orders = f"out-{uuid4().hex[:8]}"
    env: dict[str, Any] = {"KAFKA": broker.servers, "ORDERS": orders}
    printed = run_example("e07_produce/pipeline.py", **env)

    assert "1,000 in = 999 out + 1 dead-lettered" in printed
    messages = broker.read_all(orders)
    values = {message.key: json.loads(message.value or b"") for message in messages}
    assert len(messages) == 999
    assert values == {
        b"%d" % n: {"id": n, "country": ("DE", "FR")[n % 2], "note": f"Hello, order {n}"}
        for n in range(1000)
        if n != 500
    }
    assert all(message.header("order-id") == message.key for message in messages)
    (letter,) = ids("dead-letters/**/*.parquet", "value")
    assert json.loads(letter) == {"id": 500, "country": "DE", "note": "Hello, " + "x" * 2_000_000}
