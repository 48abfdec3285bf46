"""A record: what came in, as bytes, before anyone touched it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

Header = tuple[str, bytes | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What came in, with its coordinates where the source has any.

    Attributes:
        key: bytes of the key, None where there was none.
        value: bytes of the value; None is a tombstone.
        headers: in their order, names may repeat.
        timestamp: the record's own, with a time zone.
        topic, partition, offset: where it lies in Kafka.
        file: path of the file it came from, for file sources.
        columns: the row's remaining columns as a JSON object, for sources that are not Kafka;
            bytes, and text that is no UTF-8, in base64, NaN and infinities as text.
    """

    key: bytes | None = None
    value: bytes | None = None
    headers: tuple[Header, ...] = ()
    timestamp: datetime | None = None
    topic: str | None = None
    partition: int | None = None
    offset: int | None = None
    file: str | None = None
    columns: str | None = None

    @property
    def coordinates(self) -> str:
        """``topic[partition]@offset``, else the file's path, else empty."""
        if self.topic is not None:
            return f"{self.topic}[{self.partition}]@{self.offset}"
        return self.file or ""
