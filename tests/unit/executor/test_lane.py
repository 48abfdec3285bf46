"""A lane of columns is as one of objects."""

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from sparkguard.executor.lane import Lane, Unit

UNITS = st.one_of(st.integers(0, 50), st.tuples(st.integers(0, 50), st.text(max_size=2)))


@st.composite
def lanes(draw: st.DrawFn) -> Lane:
    """Lanes as stages leave them."""
    values = draw(st.lists(st.integers(0, 99), max_size=20))
    size = len(values)
    units: list[Unit] | None = draw(st.none() | st.lists(UNITS, min_size=size, max_size=size))
    return Lane(values, units, draw(st.booleans()))


def columns(lane: Lane) -> Lane:
    """The same lane with its values as rows of a column."""
    batch = pa.RecordBatch.from_arrays([pa.array(lane.values, pa.int64())], ["value"])
    return Lane(batch, lane.units, lane.fanned)


def same(one: Lane, other: Lane) -> bool:
    """Whether both hold the same values of the same units."""
    values = one.values.column(0).to_pylist()  # type: ignore[union-attr]
    return values == other.values and list(one.rows()) == list(other.rows())


@given(lanes(), st.data())
def test_columns_leave_as_objects_do(lane: Lane, data: st.DataObject) -> None:
    """Whatever leaves a lane, its columns and their units stay together."""
    size = len(lane.values)
    lost = data.draw(st.sets(st.integers(0, size - 1)) if size else st.just(set()))
    flags = data.draw(st.lists(st.integers(0, 1), min_size=size, max_size=size))
    gone = data.draw(st.sets(UNITS))

    assert columns(lane).columnar
    assert not lane.columnar
    assert same(columns(lane).without(lost), lane.without(lost))
    assert same(columns(lane).keep(flags), lane.keep(flags))
    assert same(columns(lane).without_units(gone), lane.without_units(gone))
    assert columns(lane).records() == lane.records()


@given(st.integers(1, 20), st.sets(st.integers(0, 19)), st.integers(0, 99))
def test_a_part_knows_its_rows(size: int, lost: set[int], start: int) -> None:
    """What leaves a part leaves under the number that it has in the batch."""
    part = Lane(list(range(start, start + size)), range(start, start + size))

    left = part.without([n for n in lost if n < size])

    assert list(left.rows()) == left.values
    assert left.values == [start + n for n in range(size) if n not in lost]
    assert left.whole == (not lost & set(range(size)))
