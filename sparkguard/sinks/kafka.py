"""kafka: letters as messages of a dead-letter topic.

Key, value and headers are the record's own, byte for byte; the facts are further headers,
spelled in a dialect. The message's timestamp is the failure's, so retention counts from there.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Final

from sparkguard.core.letter import Letter
from sparkguard.core.secret import masked
from sparkguard.errors import InvalidSettingError, SinkError
from sparkguard.sinks._kafka_producer import CHECK_SECONDS, DEFAULTS, admin_for, topics_at
from sparkguard.sinks._kafka_writer import KafkaWriter
from sparkguard.sinks.base import SinkTask, Writer

_OURS: Final[Mapping[str, str]] = {
    "bootstrap.servers": "is the setting 'bootstrap_servers' of the sink",
    "metadata.broker.list": "is the setting 'bootstrap_servers' of the sink",
    "transactional.id": "would need transactions, which letters are not sent in",
    "delivery.report.only.error": "would hide the acknowledgements that the sink waits for",
}
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class KafkaSink:
    """Sends letters to a topic and waits for the acknowledgement of all in-sync replicas.

    A name of a header ends at its first NUL character: the client hands names on as C strings.

    Attributes:
        bootstrap_servers: ``host:port``, several by comma.
        topic: the dead-letter topic; no query that writes to it may read from it.
        dialect: how facts are spelled: a name in the settings, a `Dialect` once they are resolved.
        overflow: name of the sink (a file sink) for letters too large for the topic; the topic
            then gets a pointer. Without one such a letter fails the task.
        create: make the topic at start where it is missing.
        partitions, replication: of a topic that is made; None is the broker's default.
        config: further settings of librdkafka, security among them; `DEFAULTS` are in force
            first. ``delivery.timeout.ms`` bounds how long a task waits for an acknowledgement.
    """

    bootstrap_servers: str
    topic: str
    dialect: str | Any = "native"
    overflow: str | None = None
    create: bool = False
    partitions: int | None = None
    replication: int | None = None
    config: dict[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if not _TOPIC.fullmatch(self.topic):
            problem = f"{self.topic!r} is no name for a Kafka topic."
            raise InvalidSettingError(problem, key_path="topic")
        for key, why in _OURS.items():
            if key in self.config:
                raise InvalidSettingError(f"{key!r} {why}.", key_path=f"config.{key}")
        for key in ("acks", "request.required.acks"):
            if str(self.config.get(key, "all")) not in {"all", "-1"}:
                problem = "must be 'all': a letter counts as stored when every replica has it."
                raise InvalidSettingError(problem, key_path=f"config.{key}")

    def __repr__(self) -> str:
        return (
            f"KafkaSink(bootstrap_servers={self.bootstrap_servers!r}, topic={self.topic!r}, "
            f"dialect={self.dialect!r}, overflow={self.overflow!r}, create={self.create!r}, "
            f"partitions={self.partitions!r}, replication={self.replication!r}, "
            f"config={masked(self.config)!r})"
        )

    @property
    def client(self) -> dict[str, Any]:
        """The settings of librdkafka in force, secrets included."""
        given = {key: value for key, value in self.config.items() if value is not None}
        return {
            **DEFAULTS,
            "acks": "all",
            **given,
            "bootstrap.servers": self.bootstrap_servers,
        }

    def open(self, task: SinkTask) -> Writer:
        """A writer for one task, on the producer that this process keeps for these settings.

        Raises:
            SinkError: dialect or overflow is a name that nobody resolved, or overflow is no remedy.
        """
        if isinstance(self.dialect, str):
            msg = f"the dialect {self.dialect!r} is only a name; resolve it on the driver."
            raise SinkError(msg, sink=task.name, retriable=False)
        if self.overflow is not None and self.overflow not in task.sinks:
            msg = f"its overflow sink {self.overflow!r} is not in the settings."
            raise SinkError(msg, sink=task.name, retriable=False)
        if self.overflow is not None and isinstance(task.sinks[self.overflow], KafkaSink):
            msg = f"its overflow sink {self.overflow!r} has a limit itself: name a file sink."
            raise SinkError(msg, sink=task.name, retriable=False)
        return KafkaWriter(self, task)

    def check(self, name: str, source_topics: frozenset[str]) -> None:
        """Refuse a loop, try the settings and the broker, and look for the topic.

        Raises:
            ConfigError: the query reads the topic, it does not exist, or `config` is wrong.
            SinkError: the broker does not answer within `CHECK_SECONDS`, or makes no topic.
        """
        if self.topic in source_topics:
            problem = f"the query reads the topic {self.topic!r} itself: letters would come back."
            raise InvalidSettingError(problem, key_path=f"sinks.{name}.topic")
        admin, troubles = self._admin(name)
        if self.topic in self._topics(name, admin, troubles):
            return
        if not self.create:
            problem = (
                f"the topic {self.topic!r} does not exist at {self.bootstrap_servers}. "
                "Set 'create: true', or make it: kafka-topics.sh --bootstrap-server "
                f"{self.bootstrap_servers} --create --topic {self.topic}"
            )
            raise InvalidSettingError(problem, key_path=f"sinks.{name}.topic")
        self._create(name, admin)

    def refuses(self, letter: Letter) -> str | None:
        """Refuse a record that was read from this sink's own topic."""
        if letter.record.topic != self.topic:
            return None
        return f"The record {letter.record.coordinates} was read from this sink's own topic."

    def _admin(self, name: str) -> tuple[Any, list[str]]:
        try:
            return admin_for(self.client)
        except ValueError as error:
            raise InvalidSettingError(str(error), key_path=f"sinks.{name}.config") from None

    def _topics(self, name: str, admin: Any, troubles: list[str]) -> Mapping[str, Any]:
        try:
            return topics_at(self.client, admin, troubles)
        except ConnectionError as error:
            raise SinkError(str(error), sink=name) from None

    def _create(self, name: str, admin: Any) -> None:
        from confluent_kafka import KafkaError, KafkaException
        from confluent_kafka.cimpl import NewTopic

        topic = NewTopic(self.topic, self.partitions or -1, self.replication or -1)
        made: Future[None] = admin.create_topics([topic])[self.topic]
        try:
            made.result(CHECK_SECONDS)
        except (KafkaException, TimeoutError) as error:
            cause = error.args[0] if error.args else None
            if isinstance(cause, KafkaError) and cause.code() == KafkaError.TOPIC_ALREADY_EXISTS:
                return
            reason = cause.str() if isinstance(cause, KafkaError) else "no answer"
            msg = f"the topic {self.topic!r} could not be made: {reason}."
            raise SinkError(msg, sink=name) from None
        self._await_topic(name, admin)

    def _await_topic(self, name: str, admin: Any) -> None:
        until = time.monotonic() + CHECK_SECONDS
        while self.topic not in self._topics(name, admin, []):
            if time.monotonic() > until:
                msg = f"the topic {self.topic!r} was made but does not appear."
                raise SinkError(msg, sink=name)
