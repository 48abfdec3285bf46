"""What a vectorised function raises to say which rows are bad."""

from __future__ import annotations

from collections.abc import Mapping
from operator import index
from typing import Any


class NamingError(TypeError):
    """`PartialFailure` was made of what names no rows, or no exceptions."""


class PartialFailure(Exception):  # noqa: N818 - the name says what it means: not all of it failed
    """Some rows of a batch failed, and the function knows which: nothing is called again.

    Args:
        failed: the exception of each bad row, by its place in the batch, from 0.
        result: what the function gives for the other rows, in their order; may be left out
            where there are none.

    Raises:
        NamingError: a place is no whole number, or what failed is no exception.
    """

    def __init__(self, failed: Mapping[int, BaseException], result: Any = None) -> None:
        self.failed = {_place(row): _told(error) for row, error in failed.items()}
        self.result = result
        super().__init__(f"{len(self.failed)} rows of the batch failed")

    def __reduce__(self) -> tuple[Any, ...]:
        return PartialFailure, (self.failed, self.result)


def _place(row: Any) -> int:
    try:
        if isinstance(row, bool):
            raise TypeError
        return index(row)  # numpy's whole numbers too
    except TypeError:
        msg = f"PartialFailure takes the places of bad rows, not {type(row).__name__}."
        raise NamingError(msg) from None


def _told(error: Any) -> BaseException:
    if not isinstance(error, BaseException):
        msg = f"PartialFailure takes the exception of each bad row, not {type(error).__name__}."
        raise NamingError(msg)
    return error
