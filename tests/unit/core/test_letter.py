"""A letter's id: one for every delivery, another for every other letter."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from sparkguard.core.failure import Failure
from sparkguard.core.letter import Letter, letter_id
from tests.unit.core.made import FAILURE, failure

NOWHERE: dict[str, Any] = {"topic": None, "partition": None, "offset": None}


def test_id() -> None:
    """P3: 32 hexadecimal digits, the same in every process."""
    assert letter_id(FAILURE) == letter_id(FAILURE)
    assert len(letter_id(FAILURE)) == 32
    int(letter_id(FAILURE), 16)


SAME: list[dict[str, Any]] = [
    {"message": "other"},
    {"trace": "other"},
    {"attempts": 9},
    {"batch_id": 8},
    {"query_id": "other"},
    {"exception_types": ("KeyError",)},
    {"fingerprint": "other"},
    {"state_version": 9},
    {"state": "other"},
    {"first_failed_at": None},
    {"timestamp": None},
    {"headers": ()},
]
OTHER: list[dict[str, Any]] = [
    {"app": "other"},
    {"flow": "other"},
    {"stage": "other"},
    {"path": "items[3]"},
    {"topic": "other"},
    {"partition": 4},
    {"offset": 43},
    {"state_key": "other"},
    {"value": b"other"},
    {"value": None},
    {"value": b""},
]
OTHER_NOWHERE: list[dict[str, Any]] = [
    {"app": "other"},
    {"stage": "other"},
    {"file": "other"},
    {"file": None},
    {"columns": "other"},
    {"columns": None},
    {"key": None},
    {"value": None},
    {"value": b""},
]


@pytest.mark.parametrize("changes", SAME, ids=str)
def test_how_it_failed_is_no_part(changes: dict[str, Any]) -> None:
    """P3: another attempt, batch, run or message is the same letter."""
    assert letter_id(failure(**changes)) == letter_id(FAILURE)
    nowhere = {**NOWHERE, "payload": "record"}
    assert letter_id(failure(**nowhere, **changes)) == letter_id(failure(**nowhere))


@pytest.mark.parametrize("changes", OTHER, ids=str)
def test_what_failed_is_the_id(changes: dict[str, Any]) -> None:
    """P3: app, flow, stage, element, coordinates and value."""
    assert letter_id(failure(**changes)) != letter_id(FAILURE)


@pytest.mark.parametrize("changes", OTHER_NOWHERE, ids=str)
def test_without_coordinates(changes: dict[str, Any]) -> None:
    """P3: else the content, the file and the n-th occurrence."""
    assert letter_id(failure(**NOWHERE, **changes)) != letter_id(failure(**NOWHERE))


@pytest.mark.parametrize("make", [lambda: FAILURE, lambda: failure(**NOWHERE)])
def test_occurrences(make: Callable[[], Failure]) -> None:
    """P3: equal records of one task are letters of their own."""
    assert len({letter_id(make(), n) for n in range(5)}) == 5


def test_parts_do_not_run_together() -> None:
    """P3: what ends one part cannot begin the next."""
    assert letter_id(failure(app="x\0y", flow="z")) != letter_id(failure(app="x", flow="y\0z"))
    assert letter_id(failure(app="ab", flow="c")) != letter_id(failure(app="a", flow="bc"))
    one = failure(**NOWHERE, key=b"ab", value=b"c")
    assert letter_id(one) != letter_id(failure(**NOWHERE, key=b"a", value=b"bc"))


def test_text_that_is_no_utf8() -> None:
    """P17: a file name with a lone surrogate has an id."""
    assert letter_id(failure(**NOWHERE, file="\udc80", columns="\udc81"))


def test_without() -> None:
    """P17: a letter that is too large can lose its trace, then its message, nothing else."""
    letter = Letter(id="x", failure=FAILURE)
    assert letter.record is FAILURE.record
    assert letter.without("trace").failure == replace(FAILURE, trace="")
    assert letter.without("trace", "message").failure == replace(FAILURE, trace="", message="")


def test_equal_rows_of_two_batches() -> None:
    """P3, P6: they are two letters; a batch that is replayed has the same number and query."""
    row = {**NOWHERE, "payload": "row", "query_id": "q", "batch_id": 7}
    assert letter_id(failure(**row)) == letter_id(failure(**row, attempts=3))
    others = [{**row, "batch_id": 8}, {**row, "query_id": "r"}, {**row, "batch_id": None}]
    assert len({letter_id(failure(**one)) for one in (row, *others)}) == 4
