"""``deserialize``: bytes in, an object out; the only stage that sees the raw value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar, overload

from sparkguard.errors import StageError
from sparkguard.formats.base import Format
from sparkguard.stages.base import P, R, Stage, record_stage

T_co = TypeVar("T_co", covariant=True)


class Reads(Protocol[T_co]):
    """A format, as a type checker sees it: it knows what its decoder gives."""

    def decoder(self) -> Callable[[bytes], T_co]:
        """The function that reads one value."""
        ...


@overload
def deserialize(source: Reads[R], /, *, name: str | None = None) -> Stage[[bytes], R]: ...
@overload
def deserialize(
    source: Callable[P, R], /, *, name: str | None = None, returns: Any = None
) -> Stage[P, R]: ...
@overload
def deserialize(
    *, name: str | None = None, returns: Any = None
) -> Callable[[Callable[P, R]], Stage[P, R]]: ...
def deserialize(source: Any = None, /, *, name: str | None = None, returns: Any = None) -> Any:
    """A stage that reads the record's value: from a format, or over a function bytes -> T.

    Args:
        source: a format like ``Json(Order)``, or the function; bare or with arguments.
        name: the key of its settings; the function's name, ``deserialize`` for a format.
        returns: what the function gives (DDL string, StructType or type), instead of the
            annotation. A format says this itself.
    """

    def decorate(plain: Callable[..., Any]) -> Stage[..., Any]:
        return record_stage("deserialize", plain, name=name, returns=returns)

    if source is None:
        return decorate
    if isinstance(source, type) and hasattr(source, "decoder"):
        msg = f"give an instance of the format: {source.__name__}()."
        raise StageError(msg, stage=name or "deserialize")
    if isinstance(source, Format):
        if returns is not None:
            msg = "a format says itself what it gives; leave out returns=."
            raise StageError(msg, stage=name or "deserialize")
        return Stage(kind="deserialize", name=name or "deserialize", format=source)
    if isinstance(source, type):
        msg = f"{source.__name__} is a type, not a format: say sg.Json({source.__name__})."
        raise StageError(msg, stage=name or "deserialize")
    return decorate(source)
