# ruff: noqa: DTZ001 - times without a zone are the point
from datetime import UTC, datetime, timedelta, timezone

from hypothesis import given
from hypothesis import strategies as st

from sparkguard.core.instant import milliseconds, utc
from tests.support.letters import ZONES


@given(st.datetimes(datetime(2, 1, 1), datetime(9998, 1, 1), timezones=ZONES))
def test_the_instant_stays(when: datetime) -> None:
    """Another zone, the same instant."""
    assert utc(when) == when
    assert utc(when).tzinfo is UTC


@given(st.datetimes(timezones=st.none() | ZONES))
def test_nothing_raises(when: datetime) -> None:
    """P17: no date is out of range, not even the first and the last."""
    assert utc(when).tzinfo is UTC
    assert isinstance(milliseconds(when), int)


def test_without_a_zone_it_is_utc() -> None:
    """Spark's timestamps without a zone are taken for UTC, on every machine."""
    assert utc(datetime(2024, 1, 1)) == datetime(2024, 1, 1, tzinfo=UTC)
    assert milliseconds(datetime(1970, 1, 1, 0, 0, 1)) == 1000


def test_the_edge_stands_for_what_lies_behind_it() -> None:
    """Year 1 in a zone east of UTC begins before UTC's calendar does."""
    east = timezone(timedelta(hours=14))
    assert utc(datetime.min.replace(tzinfo=east)) == datetime.min.replace(tzinfo=UTC)
