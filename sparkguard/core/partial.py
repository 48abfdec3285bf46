"""What a vectorised function raises to say which rows are bad."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class PartialFailure(Exception):  # noqa: N818 - the name says what it means: not all of it failed
    """Some rows of a batch failed, and the function knows which: nothing is called again.

    Args:
        failed: the exception of each bad row, by its place in the batch, from 0.
        result: what the function gives for the other rows, in their order.
    """

    def __init__(self, failed: Mapping[int, BaseException], result: Any) -> None:
        self.failed = dict(failed)
        self.result = result
        super().__init__(f"{len(self.failed)} rows of the batch failed")

    def __reduce__(self) -> tuple[Any, ...]:
        return PartialFailure, (self.failed, self.result)
