"""Text in one encoding."""

from __future__ import annotations

import builtins
import codecs
from collections.abc import Callable
from dataclasses import dataclass
from operator import methodcaller

from sparkguard.errors import StageError


@dataclass(frozen=True, slots=True)
class Text:
    """Reads a value as text; bytes that are not of the encoding are a failure, never replaced.

    An empty value is an empty text.

    Attributes:
        encoding: a name that Python knows; ``utf-8-sig`` drops a byte order mark.

    Raises:
        StageError: Python knows no such text encoding.
    """

    encoding: str = "utf-8"

    def __post_init__(self) -> None:
        try:
            text = isinstance(codecs.decode(b"", self.encoding), str)
        except LookupError:
            text = False
        if not text:
            msg = f"{self.encoding!r} is no text encoding that Python knows."
            raise StageError(msg)

    @property
    def type(self) -> builtins.type[str]:
        """`str`."""
        return str

    def decoder(self) -> Callable[[bytes], str]:
        """``bytes.decode`` with the encoding."""
        return methodcaller("decode", self.encoding)
