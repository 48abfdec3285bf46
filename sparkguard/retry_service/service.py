"""The retry service: a Spark query that holds what `retry_later` put off until it is due.

It reads the retry topic, keeps in its own state what is not due (`waiting`), and publishes the rest
to the app's redrive topic (`sending_back`). Nothing is deleted from the topic: its retention does.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from sparkguard.config.model import RetrySettings, Settings, StageSettings, StateSettings
from sparkguard.config.resolve import DEFAULT_SINK
from sparkguard.config.retry_topics import retry_topic
from sparkguard.dialects.native import DUE
from sparkguard.driver.state import State
from sparkguard.errors import ConfigError, SinkError, UnknownNameError
from sparkguard.events import RETRIES_SENT, log
from sparkguard.guard import Guard
from sparkguard.sinks._kafka_producer import admin_for, topics_at
from sparkguard.sinks.kafka import KafkaSink
from sparkguard.stages.foreach_batch import foreach_batch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from sparkguard.retry_service.sending_back import Plan

NAME: Final = "retry_service"
"""The service's stage and query, in log lines and the state."""

CONF: Final = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    # A batch stores what changed; a whole snapshot would take the longer, the more waits.
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
}
"""What the service needs of its Spark session."""

_PARTITIONS: Final = "spark.sql.shuffle.partitions"
_FACT: Final = f"try_element_at(filter(headers, h -> h.key = '{DUE}'), -1).value"
_DUE: Final = f"coalesce(unix_millis(try_cast(cast({_FACT} as string) as timestamp)), 0)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """What the service is told.

    Attributes:
        sink: name of the sink that is the retry topic.
        checkpoint: where Spark keeps what waits; unsaid, in the app's state.
        trigger: milliseconds from one look at what is due to the next.
        buckets: into so many parts a slot is divided, so that the work is spread.
        at_once: so many messages of the retry topic are taken in one batch.
        source: further options of Spark's Kafka source, security among them.
    """

    settings: Settings
    sink: str = "retry"
    checkpoint: str = ""
    trigger: int = 1_000
    buckets: int = 8
    at_once: int = 20_000
    source: Mapping[str, str] = field(default_factory=dict, repr=False)

    def run(self, spark: Callable[[], SparkSession]) -> None:
        """Send back what is due, until a signal or the stop marker asks for an end.

        Args:
            spark: makes the session; called once the settings are known to be fine.

        Raises:
            ConfigError: no retry topic or no redrive topic is named, or one does not exist.
            SinkError: a broker does not answer.
            RestartLimitError: the query failed too often.
        """
        guard = self.guard()
        retry, redrive = self.topics(guard)
        guard.sinks[DEFAULT_SINK].check(DEFAULT_SINK, frozenset({retry.topic}))
        _check(retry, f"sinks.{self.sink}.topic")
        _check(redrive, "redrive.topic")
        made = spark()
        self._try(made, retry)

        def retry_service() -> StreamingQuery:
            return self.start(made, guard)

        guard.run(retry_service)

    def guard(self) -> Guard:
        """The guard of the service: the app's sinks, and a state of its own within the app's."""
        given = self.settings
        # A batch that failed is tried again by the supervisor, from its checkpoint.
        once = StageSettings(retry=RetrySettings(max_attempts=1))
        return Guard(
            Settings(
                app=given.app,
                state=StateSettings(path=self.state.path),
                sinks=given.sinks,
                defaults=once,
                restart=given.restart,
                redact=given.redact,
            )
        )

    @property
    def state(self) -> State:
        """Where the service keeps its restarts, and looks for its stop marker."""
        app = self.settings.app
        return State(f"{State.at(self.settings.state.path, app).path}/retry-service")

    def topics(self, guard: Guard) -> tuple[KafkaSink, KafkaSink]:
        """The retry topic, and the topic to which records are sent back.

        Raises:
            ConfigError: the settings do not name them.
        """
        given = self.settings.redrive
        if self.sink not in guard.sinks:
            raise UnknownNameError("sink", self.sink, guard.sinks)
        retry: Any = guard.sinks[self.sink]
        if retry_topic(self.settings, self.sink) is None:
            problem = "no retry topic: it must have the type 'kafka' and the dialect 'native'."
            raise ConfigError(f"The sink {self.sink!r} is {problem}")
        if given.topic is None:
            problem = "set 'redrive: {topic: …}', to which the app's query subscribes."
            raise ConfigError(f"The settings name no topic to send records back to: {problem}")
        same = given.bootstrap_servers is None
        redrive = KafkaSink(
            bootstrap_servers=given.bootstrap_servers or retry.bootstrap_servers,
            topic=given.topic,
            config=given.config or (retry.config if same else {}),
        )
        return retry, redrive

    def start(self, spark: SparkSession, guard: Guard) -> StreamingQuery:
        """The query, started in a session of its own beside `spark`."""
        from sparkguard.retry_service.sending_back import Plan

        retry, redrive = self.topics(guard)
        session, context = spark.newSession(), spark.sparkContext
        for key, value in CONF.items():
            session.conf.set(key, value)
        if context.getConf().get(_PARTITIONS) is None:
            # Each has a store of its own, which every batch commits: as many as can work at once.
            session.conf.set(_PARTITIONS, str(context.defaultParallelism))
        plan = Plan(
            app=self.settings.app,
            redrive=redrive,
            sinks=guard.sinks,
            aside=DEFAULT_SINK,
            stop_marker=self.state.stop_marker,
        )
        stage = foreach_batch(partial(_send, plan), name=NAME)
        return (
            self._due(self._messages(session, retry))
            .writeStream.foreachBatch(guard.foreach_batch(stage))
            .queryName(NAME)
            .outputMode("append")
            .option("checkpointLocation", self.checkpoint or self._own_checkpoint())
            .trigger(processingTime=f"{self.trigger} milliseconds")
            .start()
        )

    def _try(self, session: SparkSession, retry: KafkaSink) -> None:
        from pyspark.errors import AnalysisException

        try:
            self._messages(session, retry)
        except AnalysisException as error:
            raise ConfigError(
                f"Spark cannot read Kafka here: {str(error).splitlines()[0]} Give it the "
                "connector: spark.jars.packages=org.apache.spark:spark-sql-kafka-0-10_2.13:"
                f"{session.version}"
            ) from error

    def _own_checkpoint(self) -> str:
        path = self.state.path
        if "://" in path:
            raise ConfigError(
                f"The state is at {path}, which Spark may know by another name: say where the "
                "checkpoint is to be."
            )
        return f"{path}/checkpoint"

    def _messages(self, session: SparkSession, retry: KafkaSink) -> DataFrame:
        """What the retry topic holds, each with its slot and its bucket."""
        reader = session.readStream.format("kafka").options(
            **{
                "kafka.bootstrap.servers": retry.bootstrap_servers,
                "startingOffsets": "earliest",
                "maxOffsetsPerTrigger": str(self.at_once),
                **self.source,
                "subscribe": retry.topic,
                "includeHeaders": "true",
            }
        )
        # Equal keys meet in one bucket; what has none is spread by its offset.
        spread = "xxhash64(coalesce(key, cast(cast(offset as string) as binary)))"
        return reader.load().selectExpr(
            *("key", "value", "headers", "topic", "partition", "offset", "timestamp"),
            f"cast(pmod({spread}, {self.buckets}) as int) bucket",
            f"({_DUE} + {self.trigger - 1}) div {self.trigger} * {self.trigger} slot",
        )

    def _due(self, messages: DataFrame) -> DataFrame:
        """The bundles whose time has come, batch by batch."""
        from sparkguard.retry_service.waiting import BUNDLE, BUNDLED, Waiting, bundled

        # A query that starts again looks at no timer before something is new: this source always
        # has a row, whatever the clock says.
        every = messages.sparkSession.readStream.format("rate-micro-batch").options(
            rowsPerBatch=1, numPartitions=1, advanceMillisPerBatch=1
        )
        empty = ("0 bucket", "0L slot", "cast('' as binary)")
        none = every.load().where("value < 0").selectExpr(*empty)
        return (
            messages.mapInArrow(bundled, BUNDLED)
            .union(none)
            .groupBy("bucket", "slot")
            .transformWithState(Waiting(), BUNDLE, "append", "ProcessingTime")
        )


def session(master: str, conf: Mapping[str, str]) -> SparkSession:
    """A session for the service; ``local[*]`` where neither `master` nor Spark's settings say."""
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName("sparkguard retry-service")
    if master:
        builder = builder.master(master)
    for key, value in conf.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def _send(plan: Plan, batch: DataFrame, batch_id: int) -> None:
    from sparkguard.retry_service.sending_back import SENT, run

    counts = batch.mapInArrow(partial(run, plan), SENT).collect()
    sent, aside = (sum(row[at] for row in counts) for at in (0, 1))
    if sent or aside:
        log(RETRIES_SENT, batch_id=batch_id, topic=plan.redrive.topic, sent=sent, aside=aside)


def _check(sink: KafkaSink, setting: str) -> None:
    """Look for a topic, so that a service that cannot work does not start."""
    try:
        admin, troubles = admin_for(sink.client)
        found = topics_at(sink.client, admin, troubles)
    except ValueError as error:
        raise ConfigError(f"{setting}: {error}") from None
    except ConnectionError as error:
        raise SinkError(str(error), sink=setting) from None
    if sink.topic not in found:
        servers = sink.bootstrap_servers
        raise ConfigError(
            f"{setting}: the topic {sink.topic!r} does not exist at {servers}. Make it: "
            f"kafka-topics.sh --bootstrap-server {servers} --create --topic {sink.topic}"
        )
