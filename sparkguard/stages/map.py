"""``map``: one value in, one value out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, overload

from sparkguard.stages.base import P, R, Stage, record_stage


@overload
def map(
    function: Callable[P, R], /, *, name: str | None = None, returns: Any = None
) -> Stage[P, R]: ...
@overload
def map(
    *, name: str | None = None, returns: Any = None
) -> Callable[[Callable[P, R]], Stage[P, R]]: ...
def map(
    function: Callable[..., Any] | None = None, /, *, name: str | None = None, returns: Any = None
) -> Any:
    """A stage that makes one value of each; bare or with arguments.

    Args:
        name: the key of its settings; the function's name.
        returns: what it gives (DDL string, StructType or type), instead of the annotation.
    """

    def decorate(plain: Callable[..., Any]) -> Stage[..., Any]:
        return record_stage("map", plain, name=name, returns=returns)

    return decorate if function is None else decorate(function)
