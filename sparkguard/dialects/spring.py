"""spring: the headers of Spring Kafka's `DeadLetterPublishingRecoverer`.

Text is UTF-8; partition is four bytes, offset and timestamp are eight, big-endian. The app stands
as the consumer group. Stage, cause, attempts and id are lost; the time of the failure is the
message's.
"""

from __future__ import annotations

import struct
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import ClassVar, Final

from sparkguard.core.failure import Category, Cause, Failure
from sparkguard.core.instant import milliseconds
from sparkguard.core.letter import Letter
from sparkguard.core.record import Header, Record
from sparkguard.dialects.base import appended, foreign, spelled, taken, text

PREFIX: Final = "kafka_dlt-"
"""Every fact's header begins so."""

_KIND, _CAUSE, _MESSAGE, _TRACE, _TOPIC, _PARTITION, _OFFSET, _TIME, _TIME_TYPE, _GROUP = (
    PREFIX + name
    for name in (
        "exception-fqcn",
        "exception-cause-fqcn",
        "exception-message",
        "exception-stacktrace",
        "original-topic",
        "original-partition",
        "original-offset",
        "original-timestamp",
        "original-timestamp-type",
        "original-consumer-group",
    )
)
_KEY_KIND, _KEY_CAUSE, _KEY_MESSAGE, _KEY_TRACE = (
    PREFIX + name
    for name in (
        "key-exception-fqcn",
        "key-exception-cause-fqcn",
        "key-exception-message",
        "key-exception-stacktrace",
    )
)
_OF_VALUE: Final = (_KIND, _CAUSE, _MESSAGE, _TRACE)
_OF_KEY: Final = (_KEY_KIND, _KEY_CAUSE, _KEY_MESSAGE, _KEY_TRACE)
_ORIGIN: Final = (_TOPIC, _PARTITION, _OFFSET, _TIME, _TIME_TYPE, _GROUP)
_NAMES: Final = frozenset({*_OF_VALUE, *_OF_KEY, *_ORIGIN})
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class SpringDialect:
    """Spells and reads what Spring Kafka writes to a dead-letter topic."""

    prefix: ClassVar[str] = PREFIX

    def headers(self, letter: Letter) -> list[Header]:
        """The record's own headers, then the exception, then the origin.

        A fact that is not known has no header, unless the record has one of an earlier failure:
        then it is null, so that the old one does not count.
        """
        failure, record = letter.failure, letter.record
        when = None if record.timestamp is None else milliseconds(record.timestamp)
        facts = (
            # Always there, as Spring has it: so the letter is known for one.
            (_KIND, spelled(failure.exception_type) or b""),
            (_CAUSE, None),
            (_MESSAGE, spelled(failure.message)),
            (_TRACE, spelled(failure.trace)),
            *((name, None) for name in _OF_KEY),
            (_TOPIC, spelled(record.topic)),
            (_PARTITION, _packed(">i", record.partition)),
            (_OFFSET, _packed(">q", record.offset)),
            (_TIME, _packed(">q", when)),
            (_TIME_TYPE, None if when is None else b"CreateTime"),
            (_GROUP, spelled(failure.app)),
        )
        earlier = {name for name, _ in record.headers}
        return appended(record, (one for one in facts if one[1] is not None or one[0] in earlier))

    def read(self, message: Record) -> Letter | None:
        """The letter; its exception is the cause of Spring's own wrapper, where there is one.

        A failure of a deserializer is known by its class or by standing for the key; every other
        one is taken for processing, and each for poison.
        """
        found, own = taken(message, _NAMES)
        if not found:
            return None
        names = _OF_VALUE if found.get(_KIND) or not found.get(_KEY_KIND) else _OF_KEY
        kind, cause, said, trace = (text(found.get(name)) for name in names)
        undecoded = names is _OF_KEY or kind.endswith("DeserializationException")
        record = Record(
            key=message.key,
            value=message.value,
            headers=own,
            timestamp=_time(_number(">q", found.get(_TIME))),
            topic=text(found.get(_TOPIC)) or None,
            partition=_number(">i", found.get(_PARTITION)),
            offset=_number(">q", found.get(_OFFSET)),
        )
        failure = Failure(
            stage="",
            category=Category.DESERIALIZATION if undecoded else Category.PROCESSING,
            cause=Cause.POISON,
            exception_types=tuple(name for name in (cause, kind) if name),
            message=said,
            trace=trace,
            first_failed_at=message.timestamp,
            last_failed_at=message.timestamp,
            record=record,
            app=text(found.get(_GROUP)),
        )
        return foreign(message, failure)


def _packed(form: str, number: int | None) -> bytes | None:
    return None if number is None else struct.pack(form, number)


def _number(form: str, value: bytes | None) -> int | None:
    with suppress(struct.error):
        (number,) = struct.unpack(form, value or b"")
        return int(number) if number >= 0 else None
    return None


def _time(since: int | None) -> datetime | None:
    with suppress(OverflowError):
        return None if since is None else _EPOCH + timedelta(milliseconds=since)
    return None
