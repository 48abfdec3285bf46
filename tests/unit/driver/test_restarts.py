import json
from pathlib import Path

import pytest

from sparkguard.core.policy import Retry
from sparkguard.driver.restarts import Limit, Restarts
from sparkguard.driver.state import State
from sparkguard.errors import SparkguardError
from sparkguard.testing.clock import ManualClock

HOUR = 3600


def restarts(folder: Path, clock: ManualClock, limit: Limit | None = None) -> Restarts:
    """The limit of one build, as a process finds it."""
    state = State(str(folder))
    return Restarts(state, "build", limit or Limit(), clock, draw=lambda: 1.0)


def test_five_since_the_last_commit(tmp_path: Path) -> None:
    """P14: five restarts without a committed batch, then no more."""
    one = restarts(tmp_path, ManualClock())
    for _ in range(5):
        assert one.refusal() is None
        one.next()
    assert "5 times since the last committed batch" in str(one.refusal())


def test_progress_clears_the_first_bound(tmp_path: Path) -> None:
    """P14: a committed batch clears the count, in the state too."""
    clock = ManualClock()
    one = restarts(tmp_path, clock)
    for _ in range(5):
        one.next()
    one.progressed()
    assert one.refusal() is None
    assert restarts(tmp_path, clock).since_commit == 0


def test_flapping_meets_the_hour(tmp_path: Path) -> None:
    """P14: progress between failures does not clear the second bound; time does."""
    clock = ManualClock()
    one = restarts(tmp_path, clock)
    for _ in range(20):
        one.next()
        one.progressed()
        clock.advance(60)
    assert "20 times within an hour" in str(one.refusal())
    clock.advance(HOUR - 20 * 60 - 0.01)
    assert one.refusal() is not None
    clock.advance(0.02)
    assert one.refusal() is None, "the window slides: the first restart is an hour old"
    one.next()
    assert one.refusal() is not None


def test_the_limit_outlives_the_process(tmp_path: Path) -> None:
    """P14: the next process finds what this one has used up."""
    clock = ManualClock()
    one = restarts(tmp_path, clock)
    for _ in range(5):
        one.next()
    assert restarts(tmp_path, clock).refusal() == one.refusal() is not None


def test_counted_before_it_happens(tmp_path: Path) -> None:
    """P14: a restart that cannot be counted is none, and leaves the count as it was."""
    one = restarts(tmp_path / "state", ManualClock())
    (tmp_path / "state").write_text("in the way")
    with pytest.raises(OSError, match="state"):
        one.next()
    assert one.since_commit == 0


def test_progress_is_noted_later_if_need_be(tmp_path: Path) -> None:
    """A query that works is not stopped because its progress cannot be noted."""
    clock, folder = ManualClock(), tmp_path / "state"
    one = restarts(folder, clock)
    one.next()
    folder.rename(tmp_path / "away")
    folder.write_text("in the way")
    one.progressed()
    assert one.since_commit == 0
    folder.unlink()
    (tmp_path / "away").rename(folder)
    assert restarts(folder, clock).since_commit == 1
    one.progressed()
    assert restarts(folder, clock).since_commit == 0


def test_waits_grow_to_their_bound(tmp_path: Path) -> None:
    """Waits double up to the maximum, and are never less than half of it."""
    limit = Limit(max_restarts=99, wait=Retry(initial=1, multiplier=2, maximum=10))
    one = restarts(tmp_path, ManualClock(), limit)
    assert [one.next() for _ in range(6)] == [1, 2, 4, 8, 10, 10]
    low = Restarts(State(str(tmp_path)), "low", limit, ManualClock(), draw=lambda: 0.0)
    assert [low.next() for _ in range(5)] == [0.5, 1, 2, 4, 5]


def test_a_clock_that_was_set_back(tmp_path: Path) -> None:
    """Restarts that lie in the future do not count for ever."""
    clock = ManualClock()
    one = restarts(tmp_path, clock)
    for _ in range(20):
        one.next()
        one.progressed()
    clock.advance(-2 * HOUR)
    assert one.refusal() is None


def test_a_name_is_one_file(tmp_path: Path) -> None:
    """Whatever a build is called, its limit is one file of the state."""
    one = Restarts(State(str(tmp_path)), "../lambda>/2", Limit(), ManualClock())
    one.next()
    assert [path.parent.name for path in tmp_path.rglob("*.json")] == ["restarts"]


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    """A state that cannot be understood gives a sentence with the file's name."""
    restarts(tmp_path, ManualClock()).next()
    file = tmp_path / "restarts" / "build.json"
    assert json.loads(file.read_text())["since_commit"] == 1
    file.write_text("{")
    with pytest.raises(SparkguardError, match=r"restarts/build\.json.* is no JSON"):
        restarts(tmp_path, ManualClock())


@pytest.mark.parametrize("text", ["[1]", '{"times": [null]}', '{"since_commit": "many"}'])
def test_a_file_of_another_shape_is_named(text: str, tmp_path: Path) -> None:
    """The same for JSON that this version does not write."""
    restarts(tmp_path, ManualClock()).next()
    (tmp_path / "restarts" / "build.json").write_text(text)
    with pytest.raises(SparkguardError, match=r"'restarts/build' .* is none that this version"):
        restarts(tmp_path, ManualClock())
