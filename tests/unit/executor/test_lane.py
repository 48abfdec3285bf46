"""A lane in parts is the same lane."""

from hypothesis import given
from hypothesis import strategies as st

from sparkguard.executor.lane import Lane, Unit

UNITS = st.one_of(st.integers(0, 50), st.tuples(st.integers(0, 50), st.text(max_size=2)))


@st.composite
def lanes(draw: st.DrawFn) -> Lane:
    """Lanes as stages leave them."""
    values = draw(st.lists(st.integers(), max_size=20))
    size = len(values)
    units: list[Unit] | None = draw(st.none() | st.lists(UNITS, min_size=size, max_size=size))
    return Lane(values, units, draw(st.booleans()))


@given(lanes(), st.integers(1, 7))
def test_parts_are_the_whole(lane: Lane, size: int) -> None:
    """Values, rows and what belongs to one record stay as they were; there is one part at least."""
    parts = list(lane.parts(size))
    assert parts
    assert [value for part in parts for value in part.values] == lane.values
    assert [row for part in parts for row in part.rows()] == list(lane.rows())
    assert all(part.whole == lane.whole and part.fanned == lane.fanned for part in parts)


@given(st.integers(1, 20), st.sets(st.integers(0, 19)), st.integers(1, 7))
def test_a_part_knows_its_rows(size: int, lost: set[int], part: int) -> None:
    """What leaves a part leaves under the number that it has in the batch."""
    parts = Lane(list(range(size))).parts(part)
    left = [one.without([n for n, v in enumerate(one.values) if v in lost]) for one in parts]
    values = [value for one in left for value in one.values]
    assert values == [value for value in range(size) if value not in lost]
    assert [row for one in left for row in one.rows()] == values
    assert all(one.whole for one in left) == (not lost & set(range(size)))
