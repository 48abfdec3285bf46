"""``flat_map``: one value in, any number out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, overload

from sparkguard.stages.base import P, R, Stage, record_stage


@overload
def flat_map(
    function: Callable[P, R],
    /,
    *,
    name: str | None = None,
    returns: Any = None,
    partial: bool = False,
) -> Stage[P, R]: ...
@overload
def flat_map(
    *, name: str | None = None, returns: Any = None, partial: bool = False
) -> Callable[[Callable[P, R]], Stage[P, R]]: ...
def flat_map(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    returns: Any = None,
    partial: bool = False,
) -> Any:
    """A stage that makes any number of values of each; a generator function is welcome.

    Args:
        name: the key of its settings; the function's name.
        returns: what one element is (DDL string, StructType or type), instead of the annotation.
        partial: elements stand for themselves, and good siblings of a bad one go on. By
            default a record is atomic: if one element fails, none leaves.
    """

    def decorate(plain: Callable[..., Any]) -> Stage[..., Any]:
        return record_stage("flat_map", plain, name=name, returns=returns, partial=partial)

    return decorate if function is None else decorate(function)
