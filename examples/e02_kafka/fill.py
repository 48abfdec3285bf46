"""Fills the input topic: 1,000 orders, of each kind of trouble ten.

KAFKA=localhost:9092 python examples/e02_kafka/fill.py
"""

from __future__ import annotations

import os

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

SERVERS = os.environ.get("KAFKA", "localhost:9092")
ORDERS, PRICED = os.environ.get("ORDERS", "orders"), os.environ.get("PRICED", "orders.priced")
COUNT = 1_000


def value(number: int) -> bytes | None:
    """The value of one record; what is wrong with it follows from its number."""
    match number % 100:
        case 7:
            return b'{"id": %d, "amount":' % number
        case 13:
            return b'{"id": %d, "amount": -1}' % number
        case 21:
            return None
        case _:
            return b'{"id": %d, "amount": 10}' % number


def main() -> None:
    """Makes the topics that are missing, and sends the records."""
    admin = AdminClient({"bootstrap.servers": SERVERS})
    missing = {ORDERS, PRICED} - admin.list_topics(timeout=10).topics.keys()
    if missing:
        topics = [NewTopic(name, num_partitions=4, replication_factor=1) for name in missing]
        for made in admin.create_topics(topics).values():
            made.result(10)
    producer = Producer({"bootstrap.servers": SERVERS, "enable.idempotence": True})
    for number in range(COUNT):
        headers: dict[str, str | bytes | None] = {"sent-by": "fill.py", "number": str(number)}
        producer.produce(ORDERS, value(number), key=f"k{number}", headers=headers)
    left = producer.flush(30)
    if left:
        raise SystemExit(f"{left} records were not acknowledged by {SERVERS}.")
    print(f"Sent {COUNT} records to {ORDERS!r} at {SERVERS}.")


if __name__ == "__main__":
    main()
