"""Narrowed: whether a JSON schema bounds values closer than another one does."""

from __future__ import annotations

from typing import Any

_LENGTHS = (
    ("minLength", "maxLength"),
    ("minItems", "maxItems"),
    ("minProperties", "maxProperties"),
)


def narrowed(before: dict[str, Any], now: dict[str, Any], what: str) -> str | None:
    """The bound that values of the schema before may break; None if there is none.

    Args:
        what: what has the bound, for the sentence.
    """
    bounds = [(_low(before), _low(now)), (_high(before), _high(now))]
    for least, most in _LENGTHS:
        if "prefixItems" not in now:
            bounds.append(((before.get(least, 0), 0), (now.get(least, 0), 0)))
            bounds.append((_negative(before.get(most)), _negative(now.get(most))))
    if any(new is not None and (old is None or old < new) for old, new in bounds):
        return f"{what} may hold what is now out of its bounds"
    for rule in ("pattern", "multipleOf"):
        if now.get(rule) not in (None, before.get(rule)):
            return f"{what} may hold what {rule} {now[rule]!r} now forbids"
    return None


def _low(schema: dict[str, Any]) -> tuple[float, int] | None:
    return _edge(schema, "minimum", "exclusiveMinimum", 1)


def _high(schema: dict[str, Any]) -> tuple[float, int] | None:
    return _edge(schema, "maximum", "exclusiveMaximum", -1)


def _edge(schema: dict[str, Any], at: str, beyond: str, sign: int) -> tuple[float, int] | None:
    """A bound that is the tighter the greater it is."""
    whole = schema.get("type") == "integer"
    found = []
    if at in schema:
        found.append((sign * schema[at], 0))
    if beyond in schema:
        edge = sign * schema[beyond]
        found.append((edge + 1, 0) if whole else (edge, 1))
    return max(found, default=None)


def _negative(most: int | None) -> tuple[int, int] | None:
    return None if most is None else (-most, 0)
