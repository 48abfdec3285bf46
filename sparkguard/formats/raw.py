"""Raw bytes: the value goes to the next stage as it is."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from dataclasses import dataclass


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
