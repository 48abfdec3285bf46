"""kafka_streams: the headers of Kafka Streams' dead-letter queue (KIP-1034), all UTF-8 text.

Streams knows six facts; app, stage, cause, attempts, times and id are lost in it. What it does not
know it writes as a null value or as -1, so all six are always there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from sparkguard.core.failure import Category, Cause, Failure
from sparkguard.core.letter import Letter
from sparkguard.core.record import Header, Record
from sparkguard.dialects.base import appended, as_it_was, foreign, spelled, taken, text

PREFIX: Final = "__streams.errors."
"""Every fact's header begins so."""

_EXCEPTION, _MESSAGE, _TRACE, _TOPIC, _PARTITION, _OFFSET = _NAMES = tuple(
    PREFIX + name for name in ("exception", "message", "stacktrace", "topic", "partition", "offset")
)


@dataclass(frozen=True, slots=True)
class KafkaStreamsDialect:
    """Spells and reads what `ExceptionHandlerUtils` of Kafka Streams writes."""

    prefix: ClassVar[str] = PREFIX

    def headers(self, letter: Letter) -> list[Header]:
        """The record's own headers, then the six facts."""
        failure, record = letter.failure, letter.record
        return appended(
            record,
            [
                (_EXCEPTION, spelled(failure.exception_type)),
                (_MESSAGE, spelled(failure.message)),
                (_TRACE, spelled(failure.trace)),
                (_TOPIC, spelled(record.topic)),
                (_PARTITION, spelled(-1 if record.partition is None else record.partition)),
                (_OFFSET, spelled(-1 if record.offset is None else record.offset)),
            ],
        )

    def read(self, message: Record) -> Letter | None:
        """The letter, its time that of the message, which Streams takes from the record.

        A failure of a (de)serializer is known by its class; every other one is taken for
        processing, and each for poison, the only thing that Streams sets aside.
        """
        found, own = taken(message, _NAMES)
        if not found:
            return None
        said = text(found.get(_MESSAGE))
        # The first release with this queue wrote the exception's toString().
        kind = text(found.get(_EXCEPTION)).removesuffix(f": {said}")
        record = as_it_was(message, own, found, PREFIX)
        failure = Failure(
            stage="",
            category=Category.DESERIALIZATION
            if kind.endswith(("SerializationException", "DeserializationException"))
            else Category.PROCESSING,
            cause=Cause.POISON,
            exception_types=(kind,) if kind else (),
            message=said,
            trace=text(found.get(_TRACE)),
            record=record,
        )
        return foreign(message, failure)
