"""``filter``: keeps the values for which its function is true."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, overload

from sparkguard.stages.base import P, R, Stage, record_stage


@overload
def filter(function: Callable[P, R], /, *, name: str | None = None) -> Stage[P, R]: ...
@overload
def filter(*, name: str | None = None) -> Callable[[Callable[P, R]], Stage[P, R]]: ...
def filter(function: Callable[..., Any] | None = None, /, *, name: str | None = None) -> Any:
    """A stage that drops values: the ledger counts those as filtered; bare or with arguments.

    Args:
        name: the key of its settings; the function's name.
    """

    def decorate(plain: Callable[..., Any]) -> Stage[..., Any]:
        return record_stage("filter", plain, name=name)

    return decorate if function is None else decorate(function)
