"""Makes the topics, and sends a handful of commands: one for each thing that can become of one.

KAFKA=localhost:9092 python examples/event_sourcing/fill.py
"""

from __future__ import annotations

import json
from typing import Any

from bank import CATEGORIES, COMMANDS, INVALID, SERVERS, VALID
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

SENT: list[dict[str, Any]] = [
    {"command_id": "1", "account": "ada", "kind": "open"},
    {"command_id": "2", "account": "ada", "kind": "deposit", "amount": "100", "category": "pay"},
    # Two were made at the same time for version 2: one is in time, the other is a conflict.
    {"command_id": "3", "amount": "30", "category": "food", "expected_version": 2},
    {"command_id": "4", "amount": "20", "category": "books", "expected_version": 2},
    # It comes twice, and is answered once.
    {"command_id": "3", "amount": "30", "category": "food", "expected_version": 2},
    # Business outcomes: an overdraft, an account that nobody has opened.
    {"command_id": "5", "amount": "1000", "category": "food"},
    {"command_id": "6", "account": "bob", "amount": "1", "category": "food"},
    # Failures: an amount that is no number, a kind that there is not.
    {"command_id": "7", "amount": "ten", "category": "food"},
    {"command_id": "8", "kind": "steal", "amount": "1"},
]
USUAL = {"account": "ada", "kind": "withdraw"}


def main() -> None:
    """Makes the topics that are missing, and sends the commands."""
    admin = AdminClient({"bootstrap.servers": SERVERS})
    topics = {COMMANDS, VALID, INVALID, CATEGORIES}
    missing = topics - admin.list_topics(timeout=10).topics.keys()
    if missing:
        made = [NewTopic(name, num_partitions=4, replication_factor=1) for name in missing]
        for one in admin.create_topics(made).values():
            one.result(10)
    producer = Producer({"bootstrap.servers": SERVERS, "enable.idempotence": True})
    for command in SENT:
        value = {**USUAL, **command}
        # By account, so that its commands stay in order in one partition.
        producer.produce(COMMANDS, json.dumps(value), key=value["account"])
    left = producer.flush(30)
    if left:
        raise SystemExit(f"{left} commands were not acknowledged by {SERVERS}.")
    print(f"Sent {len(SENT)} commands to {COMMANDS!r} at {SERVERS}.")


if __name__ == "__main__":
    main()
