"""A duration in the settings: a number with its unit, as text."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, WithJsonSchema

PATTERN: Final = r"^(\d+(\.\d+)?(ms|s|m|h|d))+$"
"""What a duration looks like: ``500ms``, ``30s``, ``5m``, ``1h30m``."""

_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_WHOLE: Final = re.compile(PATTERN)
_PART: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")


def seconds(text: str) -> float:
    """The seconds in `text`.

    Raises:
        ValueError: it is no duration; the message says what one looks like.
    """
    return sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(checked(text)))


def checked(value: Any) -> str:
    """`value` itself, if it is a duration.

    Raises:
        ValueError: it is none, or a bare number, whose unit nobody can know.
    """
    if isinstance(value, str) and _WHOLE.fullmatch(value):
        return value
    if not isinstance(value, bool) and re.fullmatch(r"[\d.]+", str(value)):
        raise ValueError("A duration needs a unit: write '30s' or '500ms', not a bare number.")
    raise ValueError("A duration is text, a number and its unit: '500ms', '30s', '5m' or '1h'.")


Duration = Annotated[
    str,
    BeforeValidator(checked),
    WithJsonSchema({"type": "string", "pattern": PATTERN, "examples": ["500ms", "30s", "5m"]}),
]
"""A field that holds a duration."""
