"""connect: the context headers of Kafka Connect's dead-letter queue, all UTF-8 text.

The app stands as the connector, the flow as the executing class, the stage as the stage. There is
no task number in a letter, so its header is null. Cause, attempts, times and id are lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Final

from sparkguard.core.failure import Category, Cause, Failure
from sparkguard.core.letter import Letter
from sparkguard.core.record import Header, Record
from sparkguard.dialects.base import appended, as_it_was, foreign, spelled, taken, text

PREFIX: Final = "__connect.errors."
"""Every fact's header begins so."""

_NAMES: Final = tuple(
    PREFIX + name
    for name in (
        "topic",
        "partition",
        "offset",
        "connector.name",
        "task.id",
        "stage",
        "class.name",
        "exception.class.name",
        "exception.message",
        "exception.stacktrace",
    )
)
_CONNECTOR, _, _STAGE, _CLASS, _EXCEPTION, _MESSAGE, _TRACE = _NAMES[3:]
_CATEGORIES: Final[Mapping[str, Category]] = {
    "KEY_CONVERTER": Category.DESERIALIZATION,
    "VALUE_CONVERTER": Category.DESERIALIZATION,
    "HEADER_CONVERTER": Category.DESERIALIZATION,
    "KAFKA_PRODUCE": Category.PRODUCTION,
    "TASK_PUT": Category.PRODUCTION,
}
"""Connect's stages; every other one is processing."""


@dataclass(frozen=True, slots=True)
class ConnectDialect:
    """Spells and reads what `DeadLetterQueueReporter` of Kafka Connect writes."""

    prefix: ClassVar[str] = PREFIX

    def headers(self, letter: Letter) -> list[Header]:
        """The record's own headers, then the ten facts; one that is not known is null."""
        failure, record = letter.failure, letter.record
        facts = (
            record.topic,
            record.partition,
            record.offset,
            failure.app,
            None,
            failure.stage,
            failure.flow,
            failure.exception_type,
            failure.message,
            failure.trace,
        )
        return appended(record, zip(_NAMES, map(spelled, facts), strict=True))

    def read(self, message: Record) -> Letter | None:
        """The letter, its time that of the message, which Connect takes from the record.

        Each is taken for poison: what Connect retries in vain is set aside like the rest.
        """
        found, own = taken(message, _NAMES)
        if not found:
            return None
        record = as_it_was(message, own, found, PREFIX)
        stage, kind = text(found.get(_STAGE)), text(found.get(_EXCEPTION))
        failure = Failure(
            stage=stage,
            category=_CATEGORIES.get(stage, Category.PROCESSING),
            cause=Cause.POISON,
            exception_types=(kind,) if kind else (),
            message=text(found.get(_MESSAGE)),
            trace=text(found.get(_TRACE)),
            record=record,
            app=text(found.get(_CONNECTOR)),
            flow=text(found.get(_CLASS)),
        )
        return foreign(message, failure)
