from pathlib import Path

import pytest

from sparkguard.driver.checkpoint import Checkpoint, Range
from tests.support import checkpoint as support


class Written(support.Written):
    """A checkpoint that is read."""

    def records_in(self, batch_id: int) -> int | None:
        """What the checkpoint tells of a batch."""
        return Checkpoint(str(self.folder)).records_in(batch_id)


@pytest.fixture
def written(tmp_path: Path) -> Written:
    """An empty checkpoint."""
    return Written(tmp_path / "check point")


def test_commits(written: Written) -> None:
    """The committed batches in order of number."""
    for number in (9, 10, 11):
        written.batch(number, {"in": {"0": number}}, committed=number < 11)
    checkpoint = Checkpoint(str(written.folder))
    assert checkpoint.committed() == [9, 10]
    assert Checkpoint("/nowhere").committed() == []


def test_kafka(written: Written) -> None:
    """P4: what a batch read is the distance of its offsets from those before it."""
    written.source(0, {"in": {"0": 5, "1": 0}})
    written.batch(0, {"in": {"0": 25, "1": 10}})
    written.batch(1, {"in": {"0": 25, "1": 17}})
    written.batch(2, {"in": {"0": 25, "1": 17}})
    assert [written.records_in(batch) for batch in (0, 1, 2)] == [30, 7, 0]


def test_new_partitions_and_topics(written: Written) -> None:
    """P4: a partition that came later is read from its beginning."""
    written.batch(4, {"in": {"0": 100}})
    written.batch(5, {"in": {"0": 110, "1": 3}, "more": {"0": 2}})
    assert written.records_in(5) == 15


def test_several_sources(written: Written) -> None:
    """P4: sources are summed; one that had nothing yet starts where it began."""
    written.source(0, {"a": {"0": 0}})
    written.source(1, {"b": {"0": 1000}})
    written.batch(0, {"a": {"0": 10}}, None)
    written.batch(1, {"a": {"0": 10}}, {"b": {"0": 1004}})
    written.batch(2, {"a": {"0": 15}}, {"b": {"0": 1005}})
    assert [written.records_in(batch) for batch in (0, 1, 2)] == [10, 4, 6]


def test_other_sources(written: Written) -> None:
    """Files, rates and tables do not tell; a batch in which nothing moved read nothing."""
    written.batch(0, {"logOffset": 0}, 1795252150233)
    written.batch(1, {"logOffset": 1}, 1795252150233)
    written.batch(2, {"logOffset": 1}, 1795252150233)
    assert [written.records_in(batch) for batch in (0, 1, 2)] == [None, None, 0]


def test_mixed_sources(written: Written) -> None:
    """A sum of which a part is not known is not known."""
    written.batch(1, {"in": {"0": 1}}, {"logOffset": 1})
    written.batch(2, {"in": {"0": 9}}, {"logOffset": 2})
    written.batch(3, {"in": {"0": 12}}, {"logOffset": 2})
    assert written.records_in(2) is None
    assert written.records_in(3) == 3


def test_what_is_not_there(written: Written) -> None:
    """A batch that was purged, a beginning that is missing, sources that changed: not known."""
    written.batch(0, {"in": {"0": 1}})
    written.batch(7, {"in": {"0": 9}})
    written.batch(8, {"in": {"0": 9}}, {"in": {"0": 9}})
    assert [written.records_in(batch) for batch in (0, 7, 8, 9)] == [None] * 4


def test_a_format_to_come(written: Written) -> None:
    """A version that is not known is not guessed at."""
    written.batch(1, {"in": {"0": 1}})
    written.batch(2, {"in": {"0": 9}}, version="v2")
    assert written.records_in(2) is None


def test_offsets_that_went_back(written: Written) -> None:
    """A topic that was made anew has fewer records than before, never less than none."""
    written.batch(1, {"in": {"0": 100, "1": 10}})
    written.batch(2, {"in": {"0": 5, "1": 12}})
    assert written.records_in(2) == 2


def test_ranges(written: Written) -> None:
    """What was read since the beginning, whatever the checkpoint has forgotten of it."""
    written.source(0, {"in": {"0": 5}})
    written.batch(7, {"in": {"0": 25, "1": 3}}, None)
    checkpoint = Checkpoint(str(written.folder))
    assert checkpoint.query_id == support.QUERY
    assert checkpoint.ranges(7) == [Range("in", 0, 5, 25), Range("in", 1, 0, 3)]
    written.batch(8, {"in": {"0": 25}}, {"logOffset": 1})
    assert checkpoint.ranges(8) == [Range("in", 0, 5, 25), None]
    written.batch(9, {"in": {"0": 25}}, {"more": {"0": 3}})
    for batch in (9, 10):
        with pytest.raises(LookupError):
            checkpoint.ranges(batch)
    assert Checkpoint("/nowhere").query_id is None
