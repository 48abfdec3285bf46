"""Retry topics: the sinks in which records wait that `retry_later` put off."""

from __future__ import annotations

from collections.abc import Iterator

from sparkguard.config.model import HandlerSettings, Settings, SinkSettings
from sparkguard.core.failure import Category
from sparkguard.core.policy import Policy
from sparkguard.dialects.native import NativeDialect
from sparkguard.errors import ConfigError
from sparkguard.handlers.retry_later import SINK, RetryLaterHandler
from sparkguard.sinks.kafka import KafkaSink


def retry_sinks(settings: Settings) -> set[str]:
    """Names of the sinks that are retry topics: what lies there waits, and is no dead letter."""
    return {str(one.options.get("sink", SINK)) for one in _later(settings)}


def _later(settings: Settings) -> Iterator[HandlerSettings]:
    for stage in (settings.defaults, *settings.stages.values()):
        if stage.retry_later is not None:
            yield stage.retry_later
        for one in (stage.handler, stage.on_transient, *stage.by_exception.values()):
            if one is not None and one.type == "retry_later":
                yield one


def retry_topic(settings: Settings, name: str) -> SinkSettings | None:
    """The sink of that name, if a retry topic may be one like it; None otherwise."""
    given = settings.sinks.get(name)
    if given is None or isinstance(given.value, KafkaSink):
        dialect = None if given is None else given.value.dialect
    else:
        dialect = given.options.get("dialect", "native") if given.type == "kafka" else None
    return given if dialect == "native" or isinstance(dialect, NativeDialect) else None


def check_retry_later(
    settings: Settings, stage_name: str, category: Category, policy: Policy
) -> None:
    """Refuse a `retry_later` from which no record would come back.

    Raises:
        ConfigError: says what to write.
    """
    names = {one.sink for one in policy.handlers() if isinstance(one, RetryLaterHandler)}
    if not names:
        return
    begin, redrive = f"Stage {stage_name!r}: 'retry_later'", settings.redrive.topic
    if category is Category.PRODUCTION:
        raise ConfigError(
            f"{begin} sends a record of Kafka through its flow again, and a foreach_batch or "
            "produce has only rows. Name it on the stages of the flow, or let it try again in "
            "place: 'retry'."
        )
    if redrive is None:
        raise ConfigError(
            f"{begin} needs a topic to send records back to, one of this app alone, which the "
            "query subscribes to beside its inputs: set 'redrive: {topic: …}'."
        )
    for name in names:
        sink = retry_topic(settings, name)
        if sink is None:
            raise ConfigError(
                f"{begin} keeps records in a topic: the sink {name!r} must have the type 'kafka' "
                "and the dialect 'native'."
            )
        if redrive == (sink.value.topic if sink.value else sink.options.get("topic")):
            raise ConfigError(
                f"{begin}: the sink {name!r} and 'redrive' name the same topic, {redrive!r}; "
                "what waits and what is sent back must be apart."
            )
