"""Halving: every bad row is found, every good one is kept, and few calls are made."""

import math

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkguard.core.partial import PartialFailure
from sparkguard.executor.halving import Given, Halving, Met


class BadError(ValueError):
    """Of a row."""


class Function:
    """Doubles numbers, and raises where one of them is bad; counts its calls."""

    def __init__(self, bad: set[int], *, names: bool = False) -> None:
        self.bad = bad
        self.names = names
        self.calls = 0

    def __call__(self, batch: pa.RecordBatch) -> Given:
        self.calls += 1
        values = batch.column(0).to_pylist()
        bad = [place for place, value in enumerate(values) if value in self.bad]
        good = rows(2 * value for value in values if value not in self.bad)
        if bad and self.names:
            return PartialFailure({place: BadError(values[place]) for place in bad}, good)
        return BadError("some row") if bad else good


def rows(values: object) -> pa.RecordBatch:
    """One column of numbers."""
    return pa.RecordBatch.from_arrays([pa.array(values, pa.int64())], ["n"])


def halved(function: Function, size: int, limit: int = 10_000) -> list[Met]:
    """What the rows from 0 to `size` met."""
    halving = Halving(
        call=function,
        named=lambda told, _: told.result,
        is_poison=lambda error: isinstance(error, BadError),
        limit=limit,
    )
    return list(halving.over(rows(range(size))))


def checked(met: list[Met], size: int, bad: set[int]) -> None:
    """P6: every row is met once and in order, the bad ones alone, the good ones with a result."""
    assert [row for one in met for row in one.rows] == list(range(size))
    assert {row for one in met if one.error for row in one.rows} == bad
    for one in met:
        assert (one.error is None) != (one.result is None)
        if one.result is not None:
            assert one.result.column(0).to_pylist() == [2 * row for row in one.rows]
        else:
            assert len(one.rows) == 1


@given(st.integers(0, 300), st.sets(st.integers(0, 299)), st.booleans())
def test_the_bad_rows_stand_alone(size: int, bad: set[int], names: bool) -> None:
    """P6: whichever rows are bad, they and only they leave; O(k log n) calls find them."""
    bad = {row for row in bad if row < size}
    function = Function(bad, names=names)

    checked(halved(function, size), size, bad)

    k = len(bad)
    bound = 1 if names or not k else 2 * k * (math.log2(size / k) + 2)
    assert function.calls <= bound


def test_an_outage_is_no_rows_fault() -> None:
    """What is no poison is not looked for: all the rows of the call met it."""

    class Down(Function):
        def __call__(self, batch: pa.RecordBatch) -> Given:
            self.calls += 1
            return ConnectionError("down")

    function = Down(set())
    (met,) = halved(function, 100)

    assert met.rows == range(100)
    assert isinstance(met.error, ConnectionError)
    assert function.calls == 1


@pytest.mark.parametrize("limit", [1, 2, 7, 30])
def test_calls_are_bounded(limit: int) -> None:
    """Beyond the limit nothing is looked for any more, and it is said so."""
    function = Function(set(range(0, 1000, 10)))

    met = halved(function, 1000, limit)

    first = next(one for one in met if one.exhausted)
    assert function.calls >= limit
    assert len(first.rows) > 1
    assert all(len(one.rows) == 1 for one in met[: met.index(first)] if one.error)
