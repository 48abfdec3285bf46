"""Fills the input topic: 1,000 payments; every twentieth is in a currency that has no rate yet.

KAFKA=localhost:9092 python examples/e09_redrive/fill.py
"""

from __future__ import annotations

import os

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

SERVERS = os.environ.get("KAFKA", "localhost:9092")
PAYMENTS = os.environ.get("PAYMENTS", "payments")
AGAIN = os.environ.get("AGAIN", "payments.redrive")
COUNT = 1_000
CURRENCIES = ("EUR", "USD", "GBP", "JPY")


def main() -> None:
    """Makes both topics, as wide as each other so that a record finds its partition again."""
    admin = AdminClient({"bootstrap.servers": SERVERS})
    missing = {PAYMENTS, AGAIN} - admin.list_topics(timeout=10).topics.keys()
    if missing:
        topics = [NewTopic(name, num_partitions=4, replication_factor=1) for name in missing]
        for made in admin.create_topics(topics).values():
            made.result(10)
    producer = Producer({"bootstrap.servers": SERVERS, "enable.idempotence": True})
    for number in range(COUNT):
        currency = "CHF" if number % 20 == 0 else CURRENCIES[number % len(CURRENCIES)]
        value = b'{"id": %d, "cents": %d, "currency": "%s"}' % (number, number, currency.encode())
        producer.produce(PAYMENTS, value, key=f"k{number}")
    left = producer.flush(30)
    if left:
        raise SystemExit(f"{left} records were not acknowledged by {SERVERS}.")
    print(f"Sent {COUNT} records to {PAYMENTS!r} at {SERVERS}.")


if __name__ == "__main__":
    main()
