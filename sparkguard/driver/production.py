"""The production on the driver: looks before anything is sent, and sends frame after frame.

A micro-batch goes through the same steps as that of a user's own batch function, so its
accounts, and those of the flow in front of it, are stored before Spark commits it.
"""

from __future__ import annotations

import functools
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sparkguard import pickling
from sparkguard.core.failure import Category
from sparkguard.core.outgoing import Outgoing
from sparkguard.core.policy import Policy
from sparkguard.core.shape import Kind, Shape
from sparkguard.driver import trouble
from sparkguard.driver.batch import BatchFunction
from sparkguard.driver.mailbox import Mailbox
from sparkguard.errors import ConfigError, ProduceError, StageError
from sparkguard.executor.messages import TOPIC
from sparkguard.executor.plan import ORIGIN_COLUMN, Layout, Plan, Step
from sparkguard.frame import quoted
from sparkguard.pickling import Portable
from sparkguard.sinks._kafka_producer import DEFAULTS, admin_for, topics_at
from sparkguard.sinks.base import Sink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_NOW = {
    "client.id": "sparkguard.produce",
    # A topic that is missing is missing at once, not after half a minute.
    "topic.metadata.propagation.max.ms": 5_000,
    "queue.buffering.max.messages": 100_000,
}

_WHOLE = {"tinyint", "smallint", "int", "bigint"}
_AS_IT_IS = {"binary", "string", *_WHOLE}
_HEADERS = "array<struct<key:string,value:binary>>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """A produce stage bound to its settings.

    Attributes:
        producer: settings of librdkafka as the stage and the settings file give them.
        mailbox: makes the way back for the workers' counts.
        check: looks at sinks and source before a frame is read; raises what makes it impossible.
    """

    app: str
    name: str
    outgoing: Outgoing
    policy: Policy
    producer: dict[str, Any] = field(repr=False)
    sinks: dict[str, Sink]
    stop_marker: str
    mailbox: Callable[[Any], Mailbox | None]
    check: Callable[[DataFrame, Sequence[str]], None]


class Production(Portable):
    """What `Guard.produce` gives: sends frames to Kafka, each row once acknowledged."""

    def __init__(self, bound: Bound, run: Callable[[Callable[..., None]], BatchFunction]) -> None:
        servers = bound.producer.get("bootstrap.servers")
        if not servers:
            raise StageError(
                "its producer has no 'bootstrap.servers': give them as producer= of sg.produce, "
                f"or in the settings as stages.{bound.name}.producer.",
                stage=bound.name,
            )
        topic = bound.outgoing.fixed_topic
        if topic is not None and not TOPIC.fullmatch(topic):
            raise StageError(f"{topic!r} is no name for a Kafka topic.", stage=bound.name)
        self._bound = bound
        self._producer = {**DEFAULTS, **_NOW, "acks": "all", **bound.producer}
        self._run = run(self._send_batch)
        self._looked = False
        self.__name__ = bound.name

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Send one micro-batch: what ``writeStream.foreachBatch`` calls."""
        self._run(batch, batch_id)

    def stream(self, frame: DataFrame) -> DataStreamWriter:
        """Spark's own writer for a streaming frame; set its options and start it.

        Raises:
            StageError: the frame has not the columns, or is no stream.
            ConfigError: the topic does not exist, or the settings are wrong.
            ProduceError: no broker answers.
        """
        if not frame.isStreaming:
            raise StageError("the frame is no stream: use write.", stage=self._bound.name)
        self._look(frame)
        return frame.writeStream.foreachBatch(self)

    def write(self, frame: DataFrame) -> None:
        """Send every row of a batch frame; returns once each is acknowledged or has left.

        Raises:
            StageError, ConfigError, ProduceError: as for `stream`.
            StageFailedError: a row could not be sent, and the settings say so.
        """
        if frame.isStreaming:
            raise StageError("the frame is a stream: use stream.", stage=self._bound.name)
        self._look(frame)
        try:
            self._send(frame)
        except Exception as error:
            decided = trouble.read(error).decided
            if decided is None:
                raise
            raise decided.plain() from error

    # --- looking ----------------------------------------------------------------------------

    def _look(self, frame: DataFrame) -> None:
        self._check_columns(frame)
        self._bound.check(frame, self._sinks())
        if not self._looked:
            self._check_broker()
            # A restart during an outage is left to librdkafka, which waits for the broker.
            self._looked = True

    def _check_columns(self, frame: DataFrame) -> None:
        types = dict(frame.dtypes)
        outgoing, stage = self._bound.outgoing, self._bound.name
        shown = _shown(frame)
        twice = next((name for name in shown if shown.count(name) > 1), None)
        if not shown:
            raise StageError("the frame has no columns.", stage=stage)
        if twice is not None:
            raise StageError(f"the frame has several columns named {twice!r}.", stage=stage)
        for name in outgoing.columns():
            if name not in types:
                have = ", ".join(shown) or "none"
                raise StageError(
                    f"it takes the column {name!r}, which the frame has not; it has: {have}.",
                    stage=stage,
                )
        wrong = next((said for is_so, said in _misfits(outgoing, types) if is_so), None)
        if wrong is not None:
            raise StageError(wrong, stage=stage)

    def _check_broker(self) -> None:
        stage, topic = self._bound.name, self._bound.outgoing.fixed_topic
        servers = self._producer["bootstrap.servers"]
        try:
            admin, troubles = admin_for(self._producer)
        except ValueError as error:
            raise ConfigError(f"Stage {stage!r}: the producer's settings: {error}") from None
        try:
            topics = topics_at(self._producer, admin, troubles)
        except ConnectionError as error:
            raise ProduceError(
                f"Stage {stage!r}: {error}", topic=topic or "", code="_TRANSPORT", retriable=True
            ) from None
        if topic is not None and topic not in topics:
            raise ConfigError(
                f"Stage {stage!r}: the topic {topic!r} does not exist at {servers}. Make it: "
                f"kafka-topics.sh --bootstrap-server {servers} --create --topic {topic}"
            )
        for name in self._sinks():
            sink = self._bound.sinks.get(name)
            same = getattr(sink, "bootstrap_servers", None) == servers
            if topic is not None and same and getattr(sink, "topic", None) == topic:
                raise ConfigError(
                    f"Stage {stage!r}: its letters would go to its own topic {topic!r}, by the "
                    f"sink {name!r}: name another one."
                )

    def _sinks(self) -> list[str]:
        """The sinks that letters may go to."""
        sinks, found = self._bound.sinks, self._bound.policy.sinks()
        overflows = {getattr(sinks.get(name), "overflow", None) for name in found}
        return sorted(found | {name for name in overflows if name})

    # --- sending ----------------------------------------------------------------------------

    def _send_batch(self, batch: DataFrame, _batch_id: int) -> None:
        if not self._looked:
            self._look(batch)
        self._send(batch)

    def _send(self, frame: DataFrame) -> None:
        shown = _shown(frame)
        hidden = [ORIGIN_COLUMN] if ORIGIN_COLUMN in frame.columns else []
        mailbox = self._bound.mailbox(frame.sparkSession)
        sent = frame.select(*map(quoted, [*shown, *hidden])).mapInArrow(
            functools.partial(_run, self._packed(shown), None if mailbox is None else mailbox.slot),
            "sent long",
        )
        # Spark lets one attempt of each task commit, and only that one's counts come back.
        sent.write.format("noop").mode("overwrite").save()

    def _packed(self, shown: Sequence[str]) -> bytes:
        bound = self._bound
        step = Step(
            name=bound.name, kind="produce", category=Category.PRODUCTION, policy=bound.policy
        )
        plan = Plan(
            app=bound.app,
            flow=bound.name,
            use=uuid.uuid4().hex,
            steps=(step,),
            layout=Layout(
                others=tuple((name, place) for place, name in enumerate(shown)), rows=len(shown)
            ),
            shape=Shape(kind=Kind.LONG),
            sinks=bound.sinks,
            stop_marker=bound.stop_marker,
            outgoing=bound.outgoing,
            producer=self._producer,
        )
        try:
            return pickling.dumps(plan)
        except Exception as error:
            raise StageError(
                f"it cannot travel to the workers: {error}. Make inside its functions what "
                "belongs to the driver (locks, clients, the session).",
                stage=bound.name,
            ) from error


def _misfits(outgoing: Outgoing, types: Mapping[str, str]) -> Iterator[tuple[bool, str]]:
    """What might be wrong with the columns' types, and whether it is."""
    for part in outgoing.parts():
        if part.column is not None and part.format is None:
            name, kind = part.column, types[part.column]
            how = f"say how it is written, as in ({name!r}, sg.Json())."
            yield kind not in _AS_IT_IS, f"the column {name!r} is {kind}, no bytes or text: {how}"
    if outgoing.topic.column is not None:
        name, kind = outgoing.topic.column, types[outgoing.topic.column]
        yield kind != "string", f"topics are names, and the column {name!r} is {kind}."
    if outgoing.partition is not None:
        name, kind = outgoing.partition, types[outgoing.partition]
        yield (
            kind not in _WHOLE,
            f"partitions are whole numbers, and the column {name!r} is {kind}.",
        )
    if isinstance(outgoing.headers, str):
        name, kind = outgoing.headers, types[outgoing.headers]
        yield kind != _HEADERS, f"the column {name!r} is {kind}; headers are {_HEADERS}."


def _shown(frame: DataFrame) -> list[str]:
    return [name for name in frame.columns if name != ORIGIN_COLUMN]


def _run(work: bytes, slot: Any, batches: Iterable[Any]) -> Iterator[Any]:
    """What Spark calls in the worker, once a task."""
    from sparkguard.executor.production import run

    count = None if slot is None else lambda entry: slot.add([entry])
    yield from run(pickling.loads_on_worker(work), count, batches)
