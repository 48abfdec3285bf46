"""``foreach_batch``: a function that Spark calls with each micro-batch, on the driver."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, overload

from sparkguard.core.callables import is_coroutine, is_generator
from sparkguard.core.signature import third_parameter
from sparkguard.errors import StageError
from sparkguard.stages.base import P, R, Stage, record_stage


@overload
def foreach_batch(function: Callable[P, R], /, *, name: str | None = None) -> Stage[P, R]: ...
@overload
def foreach_batch(*, name: str | None = None) -> Callable[[Callable[P, R]], Stage[P, R]]: ...
def foreach_batch(function: Callable[..., Any] | None = None, /, *, name: str | None = None) -> Any:
    """A stage over ``(batch, batch_id)``; bare or with arguments.

    A third parameter that is annotated `SubBatch` is told which rows of the batch it is given,
    and under which name to write them: all of them, unless bad ones are looked for.

    Args:
        name: the key of its settings; the function's name.

    Raises:
        StageError: the function is a generator or coroutine function (Spark would commit
            every batch without running it), or does not take two arguments.
    """

    def decorate(plain: Callable[..., Any]) -> Stage[..., Any]:
        stage = record_stage("foreach_batch", plain, name=name)
        _refuse_what_never_runs(stage.name, plain)
        _refuse_wrong_parameters(stage.name, plain)
        return stage

    return decorate if function is None else decorate(function)


def _refuse_what_never_runs(name: str, function: Callable[..., Any]) -> None:
    for wrong, word in ((is_coroutine, "a coroutine function"), (is_generator, "a generator")):
        if wrong(function):
            msg = f"it is {word}: Spark would commit every batch without running it."
            raise StageError(msg, stage=name)


def _refuse_wrong_parameters(name: str, function: Callable[..., Any]) -> None:
    try:
        signature = inspect.signature(function)
    except ValueError:  # a function of C that describes nothing
        return
    third = third_parameter(function)
    # What an annotation in text means is asked when the stage is used.
    asks = third is not None and third.annotation is not inspect.Parameter.empty
    try:
        signature.bind(object(), 0, *([object()] if asks else []))
    except TypeError as error:
        msg = (
            "it must take two arguments, (batch, batch_id), and may take a third one that is "
            f"annotated sparkguard.SubBatch: {error}."
        )
        raise StageError(msg, stage=name) from None
