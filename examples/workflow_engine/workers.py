"""Plays the workers: 2,000 executions of 10 tasks that finish at the same time.

Results come in no order, in any partition, a fifth of them twice, a few broken. Of 20 further
executions only 6 tasks ever finish; ``workers.py late`` sends the other 4.

KAFKA=localhost:9092 python examples/workflow_engine/workers.py
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Iterator

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

SERVERS = os.environ.get("KAFKA", "localhost:9092")
RESULTS = os.environ.get("RESULTS", "results")
EXECUTIONS = os.environ.get("EXECUTIONS", "executions")
SEED = int(os.environ.get("SEED", "7"))
PARTITIONS = 8
COUNT, TASKS, FINISHED = 2_000, 10, 6
LOST = 20


def result(execution: str, task: int, patience: float) -> bytes:
    """What a worker tells of a task that it has finished, each time that it tells it."""
    told = {
        "id": f"{execution}-{task}",
        "execution": execution,
        "task": task,
        "of": TASKS,
        "took": task + 1,
        "patience": patience,
    }
    return json.dumps(told).encode()


def results(chance: random.Random) -> list[bytes]:
    """Everything that is sent while the engine runs, in the order of sending."""
    sent = [result(f"e{n}", task, 3600) for n in range(COUNT) for task in range(TASKS)]
    sent += [result(f"lost{n}", task, 1) for n in range(LOST) for task in range(FINISHED)]
    sent += chance.sample(sent, len(sent) // 5)
    sent += [result(f"e{n}", 99, 3600) for n in range(0, COUNT, 100)]  # no such task
    sent += [result(f"e{n}", 0, 3600)[:-9] for n in range(0, COUNT, 50)]  # cut short
    chance.shuffle(sent)
    return sent


def late_results() -> Iterator[bytes]:
    """What comes after everybody has given up waiting for it."""
    for n in range(LOST):
        yield from (result(f"lost{n}", task, 1) for task in range(FINISHED, TASKS))


def make_topics(*wanted: NewTopic) -> None:
    """Makes the topics that are missing."""
    admin = AdminClient({"bootstrap.servers": SERVERS})
    there = admin.list_topics(timeout=10).topics
    missing = [topic for topic in wanted if topic.topic not in there]
    for made in admin.create_topics(missing).values() if missing else ():
        made.result(10)


def states_topic(name: str) -> NewTopic:
    """A topic that keeps the newest line of each execution."""
    return NewTopic(name, 4, 1, config={"cleanup.policy": "compact"})


def main() -> None:
    """Sends all results, each to a partition drawn by lot: no order survives."""
    make_topics(NewTopic(RESULTS, PARTITIONS, 1), states_topic(EXECUTIONS))
    chance = random.Random(SEED)
    sent = list(late_results()) if "late" in sys.argv else results(chance)
    producer = Producer({"bootstrap.servers": SERVERS, "enable.idempotence": True})
    for value in sent:
        producer.produce(RESULTS, value, partition=chance.randrange(PARTITIONS))
    left = producer.flush(30)
    if left:
        raise SystemExit(f"{left} results were not acknowledged by {SERVERS}.")
    print(f"Sent {len(sent):,} results to {RESULTS!r} at {SERVERS}.")


if __name__ == "__main__":
    main()
