"""``map_batches``: many rows at once, as columns; n rows in, n rows out, in order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, overload

from sparkguard.errors import StageError
from sparkguard.stages.base import P, R, Stage, record_stage


@overload
def map_batches(
    function: Callable[P, R], /, *, returns: Any, name: str | None = None
) -> Stage[P, R]: ...
@overload
def map_batches(
    *, returns: Any, name: str | None = None
) -> Callable[[Callable[P, R]], Stage[P, R]]: ...
def map_batches(
    function: Callable[..., Any] | None = None, /, *, returns: Any = None, name: str | None = None
) -> Any:
    """A stage over a whole batch of rows, as a pyarrow RecordBatch or a pandas DataFrame.

    Which of the two says the parameter's annotation. The function gives as many rows as it
    gets, in their order. Where it raises, the batch is halved until the bad rows stand alone:
    each is one failure, and costs about twice the logarithm of the batch's rows in calls. A
    function that knows its bad rows raises `PartialFailure`, which costs no further call.

    Args:
        returns: the columns that it gives: a DDL string, a StructType, or a class with fields.
        name: the key of its settings; the function's name.

    Raises:
        StageError: `returns` is missing.
    """

    def decorate(plain: Callable[..., Any]) -> Stage[..., Any]:
        stage = record_stage("map_batches", plain, name=name, returns=returns)
        if returns is None:
            msg = 'say which columns it gives, as in returns="id long, score double".'
            raise StageError(msg, stage=stage.name)
        return stage

    return decorate if function is None else decorate(function)
