"""Text in one encoding."""

from __future__ import annotations

import builtins
import codecs
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from operator import methodcaller
from typing import Any

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

    def encoder(self) -> Callable[[Any], bytes]:
        """Text in the encoding, whole numbers in decimal digits; anything else is a failure."""
        return partial(_written, encoding=self.encoding)


def _written(value: Any, encoding: str) -> bytes:
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if isinstance(value, str):
        return value.encode(encoding)
    msg = f"Text writes text and whole numbers, and the value is {type(value).__name__}."
    raise TypeError(msg)
