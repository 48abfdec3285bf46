"""Interpolate: environment variables in the scalars of a settings file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

_PART: Final = re.compile(r"\$\$|\$\{([^}]*)(\}?)")
_INSIDE: Final = re.compile(
    r"(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?P<default>:-(?P<text>.*))?", re.DOTALL
)


def interpolate(text: str, variables: Mapping[str, str]) -> str:
    """`text` with ``${NAME}`` and ``${NAME:-default}`` replaced, and ``$$`` as ``$``.

    The default holds when the variable is not set or empty, as in a shell. A value
    is text, never structure: it is not parsed as YAML.

    Raises:
        ValueError: a variable without default is not set, or the spelling is wrong;
            the message names the variable, never a value.
    """
    return _PART.sub(lambda match: _replacement(match, variables), text)


def _replacement(match: re.Match[str], variables: Mapping[str, str]) -> str:
    if match[0] == "$$":
        return "$"
    inside = _INSIDE.fullmatch(match[1])
    if not inside or not match[2]:
        raise ValueError(
            "This is no variable: write ${NAME} or ${NAME:-default}, and $$ for a dollar sign."
        )
    name = inside["name"]
    if inside["default"] is not None:
        return variables.get(name) or inside["text"]
    if name not in variables:
        raise ValueError(
            f"The environment variable {name!r} is not set, and there is no default: "
            f"set it, or write ${{{name}:-default}}."
        )
    return variables[name]
