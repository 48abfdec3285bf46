"""Raw bytes: the value goes to the next stage as it is."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Raw:
    """Gives the next stage the bytes; never fails."""

    @property
    def type(self) -> builtins.type[bytes]:
        """`bytes`."""
        return bytes

    def decoder(self) -> Callable[[bytes], bytes]:
        """The identity: of bytes, `bytes` makes no copy."""
        return bytes

    def encoder(self) -> Callable[[Any], bytes]:
        """Bytes as they are; anything else is a failure."""
        return _as_it_is


def _as_it_is(value: Any) -> bytes:
    if isinstance(value, bytes | bytearray):
        return bytes(value)
    msg = f"Raw writes bytes, and the value is {type(value).__name__}."
    raise TypeError(msg)
