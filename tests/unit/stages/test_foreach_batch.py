"""foreach_batch: what Spark would never run is refused."""
# ruff: noqa: D103  the undocumented functions are what is decorated, as users write them

import functools
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from sparkguard.core.failure import Category
from sparkguard.core.sub_batch import SubBatch
from sparkguard.errors import StageError
from sparkguard.stages.foreach_batch import foreach_batch


def generator(batch: Any, batch_id: int) -> Iterator[int]:
    yield batch_id


async def coroutine(batch: Any, batch_id: int) -> None: ...


async def async_generator(batch: Any, batch_id: int) -> AsyncIterator[int]:
    yield batch_id


class GeneratorCall:
    def __call__(self, batch: Any, batch_id: int) -> Iterator[int]:
        yield batch_id

    async def method(self, batch: Any, batch_id: int) -> None: ...


@functools.wraps(generator)
def wrapped(*args: Any) -> Any:
    return generator(*args)


@pytest.mark.parametrize(
    "function",
    [
        generator,
        coroutine,
        async_generator,
        functools.partial(generator),
        functools.partial(functools.partial(coroutine), batch_id=1),
        GeneratorCall(),
        functools.partial(GeneratorCall()),
        GeneratorCall().method,
        wrapped,
    ],
    ids=str,
)
def test_refuses_what_never_runs(function: Any) -> None:
    """P15: generator and coroutine functions are refused when decorated, however wrapped."""
    with pytest.raises(StageError, match="commit every batch without running it"):
        foreach_batch(function, name="store")
    with pytest.raises(StageError, match="commit every batch without running it"):
        foreach_batch(name="store")(function)


@pytest.mark.parametrize(
    "function",
    [
        lambda: None,
        lambda batch: None,
        lambda a, b, c: None,
        lambda a, b, c, d: None,
        lambda a, b, *, c: None,
    ],
)
def test_takes_two_arguments(function: Any) -> None:
    """A function that cannot be called with batch and batch_id is refused at once."""
    with pytest.raises(StageError, match="two arguments"):
        foreach_batch(function, name="store")


def test_asks_for_the_sub_batch() -> None:
    """A third parameter that is annotated SubBatch is given one; another one must not need it."""

    def asks(batch: Any, batch_id: int, rows: SubBatch) -> None: ...

    def may_ask(batch: Any, batch_id: int, rows: "SubBatch | None" = None) -> None: ...

    def by_name(batch: Any, batch_id: int, rows: "sg.SubBatch") -> None: ...  # type: ignore[name-defined]  # noqa: F821

    def other(batch: Any, batch_id: int, rows: int) -> None: ...

    assert foreach_batch(asks).signature().wants_sub_batch
    assert foreach_batch(by_name).signature().wants_sub_batch
    assert foreach_batch(functools.partial(asks)).signature().wants_sub_batch
    assert not foreach_batch(may_ask).signature().wants_sub_batch
    assert not foreach_batch(lambda *args: None, name="any").signature().wants_sub_batch
    with pytest.raises(StageError, match=r"annotated sparkguard\.SubBatch"):
        foreach_batch(other).signature()


def test_accepts_the_rest() -> None:
    """Plain functions, methods, partials and functions with defaults are fine."""
    seen = []

    def store(batch: Any, batch_id: int, extra: int = 0) -> None:
        seen.append((batch, batch_id))

    stage = foreach_batch(store)
    stage("batch", 3)
    assert seen == [("batch", 3)]
    assert (stage.name, stage.category) == ("store", Category.PRODUCTION)
    assert stage.signature().output is None
    foreach_batch(lambda *args: None, name="any")
    foreach_batch(functools.partial(store, extra=2))
    foreach_batch(print, name="print")
