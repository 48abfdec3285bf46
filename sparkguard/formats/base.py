"""The contract of a format.

A format is a frozen description; `decoder` is called once in a worker's task
and gives the function that is called for each value. That function raises for
a value it cannot read; what it returns is what the next stage gets.

A format that can also write has ``encoder() -> Callable[[Any], bytes]``, made and used in the same
way. It raises for a value that it cannot write, and never writes another one in its place. With
``rows(names) -> Callable[[Sequence[list]], list[bytes]] | None`` it may also write many rows at
once, given by column, with the same bytes; where that raises, they are written one by one.

A format may have two more methods. ``check() -> None`` runs on the driver when a flow
is built, and raises `StageError` for a type that it could never read. ``explain(value,
error) -> BaseException`` runs for a value that failed, and gives an exception that says
more; so a decoder can be a function of C, which costs no Python call a record.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class Format(Protocol):
    """Reads bytes as objects of one type."""

    @property
    def type(self) -> Any:
        """The Python type, DDL string or StructType of what the decoder returns."""
        ...

    def decoder(self) -> Callable[[bytes], Any]:
        """The function that reads one value; made in the worker, once a task."""
        ...


def explained(format: Format | None, value: Any, error: BaseException) -> BaseException:
    """The exception of a value that `format` could not read, in the format's own words if any.

    Never raises: where explaining fails, `error` itself comes back.
    """
    explain = getattr(format, "explain", None)
    if explain is None:
        return error
    try:
        told = explain(value, error)
    except Exception:
        # The failure is the value's; that explaining it failed as well must not hide it.
        return error
    return told if isinstance(told, BaseException) else error
