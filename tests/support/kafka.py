"""A real Apache Kafka broker, and short ways to fill and read its topics."""

import itertools
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions, NewTopic

from tests.support import jars, parts
from tests.support.process import Child, free_port, listening

LOG4J = Path(__file__).with_name("broker.log4j.properties")
CLUSTER = "c3BhcmtndWFyZC10ZXN0cw"
JVM = [
    "-Xmx512m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    f"-Dlog4j.configuration=file:{LOG4J}",
]
START_SECONDS = 60
CALL_SECONDS = 30
LARGEST_MESSAGE = 50_000_000
BATCH = 10_000

#: One replica of everything, small buffers, and a session short enough for a quick restart.
SETTINGS = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "auto.create.topics.enable": "false",
    "background.threads": "2",
    "broker.heartbeat.interval.ms": "300",
    "broker.session.timeout.ms": "3000",
    "group.initial.rebalance.delay.ms": "0",
    "log.cleaner.dedupe.buffer.size": "4194304",
    "log.segment.delete.delay.ms": "1000",
    "num.io.threads": "4",
    "num.network.threads": "2",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
}

Headers = tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A Kafka record, as it is sent and as it is found.

    Args:
        partition: Where to send it; None lets the producer choose.
        timestamp: Milliseconds since 1970; None lets the producer choose.
    """

    key: bytes | None = None
    value: bytes | None = None
    headers: Headers = ()
    partition: int | None = None
    offset: int | None = None
    timestamp: int | None = None

    def header(self, name: str) -> bytes | None:
        """The last header of this name, as Kafka's own `lastHeader` gives it."""
        return dict(self.headers).get(name)


class Broker:
    """One Kafka process, broker and controller, on ports and a folder of its own.

    Ports and data stay the same over `stop`, `kill` and `start`, so that clients find it again.

    Args:
        settings: Lines for server.properties, such as {"message.max.bytes": "2000000"}.
    """

    def __init__(self, settings: Mapping[str, str] | None = None) -> None:
        self.java = parts.java()
        self.classpath = f"{jars.broker_jars()}/*"
        self.folder = Path(tempfile.mkdtemp(prefix="sparkguard-kafka-"))
        self.port = free_port()
        self.servers = f"127.0.0.1:{self.port}"
        self.log = self.folder / "server.log"
        self._settings = dict(settings or {})
        self._child: Child | None = None

    @property
    def running(self) -> bool:
        """Whether the process lives; it may be paused or still starting."""
        return self._child is not None and self._child.running

    def second_listener(self, port: int, advertised: int) -> None:
        """Listen at one more port, whose clients are told to come to another one."""
        settings = self._where()
        settings["listeners"] += f",PROXIED://127.0.0.1:{port}"
        settings["advertised.listeners"] += f",PROXIED://127.0.0.1:{advertised}"
        names = "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,PROXIED:PLAINTEXT"
        self._settings |= settings | {"listener.security.protocol.map": names}

    def start(self) -> Self:
        """Start the process, or start it again, and wait until it serves."""
        properties = self.folder / "server.properties"
        if not properties.exists():
            properties.write_text(self._properties())
            self._run_tool(
                "kafka.tools.StorageTool", "format", "-t", CLUSTER, "-c", str(properties)
            )
        self._child = Child(self._command("kafka.Kafka", str(properties)), log=self.log)
        try:
            self._wait_until_ready()
        except BaseException:
            self.kill()
            raise
        return self

    def stop(self) -> None:
        """Stop it as an operator would."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Kill it without warning (SIGKILL)."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """Freeze it (SIGSTOP): connections stay open, and nothing answers."""
        self._running_child().send(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a frozen one go on, and wait until it serves."""
        self._running_child().send(signal.SIGCONT)
        self._wait_until_ready()

    def close(self) -> None:
        """Kill it and delete its data."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- topics -----------------------------------------------------------------------------

    def create_topic(
        self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None
    ) -> str:
        """Create a topic, wait until it can be written to, and give its name back."""
        topic = NewTopic(name, partitions, 1, config=dict(config or {}))
        self._admin.create_topics([topic])[name].result(CALL_SECONDS)
        self._wait_for_topic(name, present=True)
        return name

    def add_partitions(self, name: str, total: int) -> None:
        """Give a topic more partitions, and wait until they are there."""
        self._admin.create_partitions([NewPartitions(name, total)])[name].result(CALL_SECONDS)
        self._wait_for_topic(name, present=True, partitions=total)

    def delete_topic(self, name: str) -> None:
        """Delete a topic and wait until it is gone."""
        self._forget_producer()
        self._admin.delete_topics([name])[name].result(CALL_SECONDS)
        self._wait_for_topic(name, present=False)

    def topics(self) -> set[str]:
        """The names of all topics but Kafka's own."""
        return {
            name for name in self._admin.list_topics(timeout=CALL_SECONDS).topics if name[0] != "_"
        }

    def produce(self, topic: str, messages: Iterable[Message]) -> int:
        """Send messages in order and wait for the acknowledgement of each.

        Raises:
            KafkaException: One of them was refused.
        """
        refused: list[KafkaError] = []
        count = 0
        for message in messages:
            _send(self._producer, topic, message, refused)
            count += 1
        left = self._producer.flush(CALL_SECONDS)
        if left or refused:
            self._forget_producer()
        if refused:
            raise KafkaException(refused[0])
        if left:
            raise TimeoutError(f"{left} of {count} messages were not acknowledged.")
        return count

    def read_all(self, topic: str) -> list[Message]:
        """Everything in a topic up to its end as it is now, by partition and offset."""
        consumer = Consumer(self._client() | _CONSUMER)
        try:
            return sorted(_read(consumer, topic), key=lambda it: (it.partition, it.offset))
        finally:
            consumer.close()

    def end_offsets(self, topic: str) -> dict[int, int]:
        """The offset behind the last message, by partition."""
        consumer = Consumer(self._client() | _CONSUMER)
        try:
            return {p: _watermarks(consumer, topic, p)[1] for p in _partitions(consumer, topic)}
        finally:
            consumer.close()

    # --- inside -----------------------------------------------------------------------------

    @cached_property
    def _admin(self) -> Any:
        return AdminClient(self._client())

    @cached_property
    def _producer(self) -> Any:
        """Kept from one call to the next: an idempotent one takes half a second to begin."""
        return Producer(self._client() | _PRODUCER)

    def _forget_producer(self) -> None:
        """Begin anew where the broker may have forgotten the old one's sequence numbers."""
        self.__dict__.pop("_producer", None)

    def _client(self) -> dict[str, Any]:
        return {
            "bootstrap.servers": self.servers,
            # A broker that is being restarted is nothing to print lines about.
            "log_level": 0,
            "reconnect.backoff.ms": 50,
            "reconnect.backoff.max.ms": 200,
        }

    def _properties(self) -> str:
        lines = SETTINGS | self._where() | self._settings
        return "".join(f"{key}={value}\n" for key, value in lines.items())

    def _where(self) -> dict[str, str]:
        controller = f"127.0.0.1:{free_port()}"
        return {
            "listeners": f"PLAINTEXT://{self.servers},CONTROLLER://{controller}",
            "advertised.listeners": f"PLAINTEXT://{self.servers}",
            "controller.quorum.voters": f"1@{controller}",
            "log.dirs": str(self.folder / "data"),
        }

    def _command(self, main: str, *args: str) -> list[str]:
        return [str(self.java), *JVM, "-cp", self.classpath, main, *args]

    def _run_tool(self, main: str, *args: str) -> None:
        run = subprocess.run(
            self._command(main, *args), capture_output=True, text=True, check=False
        )
        if run.returncode != 0:
            raise RuntimeError(f"{main} failed: {run.stdout}{run.stderr}")

    def _wait_until_ready(self) -> None:
        """Poll until the broker has registered itself and answers for its metadata."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if not self.running:
                raise RuntimeError(f"The broker did not start: {self._last_words()}")
            if listening(self.port) and self._serves():
                return
            time.sleep(0.05)
        raise TimeoutError(f"No broker within {START_SECONDS} s: {self._last_words()}")

    def _serves(self) -> bool:
        try:
            return bool(self._admin.list_topics(timeout=1).brokers)
        except KafkaException:
            return False

    def _wait_for_topic(self, name: str, *, present: bool, partitions: int = 1) -> None:
        deadline = time.monotonic() + CALL_SECONDS
        while self._has_topic(name, partitions) is not present:
            if time.monotonic() > deadline:
                raise TimeoutError(f"Topic {name!r} did not {'appear' if present else 'go'}.")
            time.sleep(0.02)

    def _has_topic(self, name: str, partitions: int) -> bool:
        found = self._admin.list_topics(timeout=CALL_SECONDS).topics.get(name)
        if found is None or len(found.partitions) < partitions:
            return False
        return all(p.leader >= 0 for p in found.partitions.values())

    def _last_words(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-30:])

    def _running_child(self) -> Child:
        if self._child is None:
            raise RuntimeError("The broker is not running.")
        return self._child

    def _end(self, number: signal.Signals) -> None:
        if self._child is not None:
            # A frozen process takes no SIGTERM.
            self._child.send(signal.SIGCONT)
            self._child.end(number)
            self._child = None
            self._forget_producer()


_PRODUCER: dict[str, Any] = {
    "acks": "all",
    "enable.idempotence": True,
    "linger.ms": 5,
    "message.max.bytes": LARGEST_MESSAGE,
    "partitioner": "murmur2_random",
    # `create_topic` has waited already; what is not there after this is not there.
    "topic.metadata.propagation.max.ms": 2000,
}
_CONSUMER: dict[str, Any] = {
    "group.id": f"sparkguard-tests-{os.getpid()}",
    "auto.offset.reset": "earliest",
    "enable.auto.commit": False,
    "enable.partition.eof": True,
    # The default makes a fast reader wait a second whenever its queue was full.
    "fetch.queue.backoff.ms": 10,
    "fetch.message.max.bytes": LARGEST_MESSAGE,
}


def _send(producer: Any, topic: str, message: Message, refused: list[KafkaError]) -> None:
    def remember(error: KafkaError | None, _: object) -> None:
        if error is not None:
            refused.append(error)

    optional = {"partition": message.partition, "timestamp": message.timestamp}
    arguments = {name: value for name, value in optional.items() if value is not None}
    for _ in itertools.count():
        try:
            producer.produce(
                topic,
                key=message.key,
                value=message.value,
                headers=list(message.headers),
                on_delivery=remember,
                **arguments,
            )
        except BufferError:
            producer.poll(0.1)
        else:
            producer.poll(0)
            return


def _read(consumer: Any, topic: str) -> Iterator[Message]:
    ends = {p: _watermarks(consumer, topic, p) for p in _partitions(consumer, topic)}
    open_ = {p for p, (low, high) in ends.items() if low < high}
    consumer.assign([TopicPartition(topic, p, ends[p][0]) for p in open_])
    deadline = time.monotonic() + CALL_SECONDS
    while open_:
        for found in consumer.consume(BATCH, timeout=0.1):
            partition = found.partition()
            error = found.error()
            if error is None and found.offset() < ends[partition][1]:
                yield _message(found)
            elif error is not None and error.code() != KafkaError._PARTITION_EOF:
                raise KafkaException(error)
            if error is not None or found.offset() >= ends[partition][1] - 1:
                open_.discard(partition)
            deadline = time.monotonic() + CALL_SECONDS
        if time.monotonic() > deadline:
            raise TimeoutError(f"Reading {topic!r} stands still.")


def _message(found: Any) -> Message:
    return Message(
        key=found.key(),
        value=found.value(),
        headers=tuple(found.headers() or ()),
        partition=found.partition(),
        offset=found.offset(),
        timestamp=found.timestamp()[1],
    )


def _partitions(consumer: Any, topic: str) -> list[int]:
    return sorted(consumer.list_topics(topic, timeout=CALL_SECONDS).topics[topic].partitions)


def _watermarks(consumer: Any, topic: str, partition: int) -> tuple[int, int]:
    low, high = consumer.get_watermark_offsets(
        TopicPartition(topic, partition), timeout=CALL_SECONDS
    )
    return low, high
