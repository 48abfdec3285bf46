"""Points in time, all of them in UTC."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST = datetime.min.replace(tzinfo=UTC)
_LAST = datetime.max.replace(tzinfo=UTC)


def utc(when: datetime) -> datetime:
    """The same instant in UTC, without a zone it is taken for UTC; never raises.

    Within a day of year 1 or 9999 UTC may have no such date; the nearest one stands for it.
    """
    if when.tzinfo is UTC:
        return when
    since = _since_epoch(when)
    try:
        return _EPOCH + since
    except OverflowError:
        return _FIRST if since < timedelta(0) else _LAST


def milliseconds(when: datetime) -> int:
    """Whole milliseconds since 1970 in UTC, as Kafka counts."""
    since = _since_epoch(when)
    return since.days * 86_400_000 + since.seconds * 1_000 + since.microseconds // 1_000


def _since_epoch(when: datetime) -> timedelta:
    if when.tzinfo is UTC:
        return when - _EPOCH
    return when.replace(tzinfo=when.tzinfo or UTC) - _EPOCH
