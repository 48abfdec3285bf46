"""Explain: a validation error as sentences, with places and without the input."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from typing import Annotated, Any, Final, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from sparkguard.config.place import KeyPath, Places, together
from sparkguard.errors import ConfigError, InvalidSettingError

_SENTENCES: Final[dict[str, str]] = {
    "bool_type": "Must be true or false (yes, no, on and off are text here).",
    "bool_parsing": "Must be true or false (yes, no, on and off are text here).",
    "int_type": "Must be a whole number.",
    "int_parsing": "Must be a whole number.",
    "int_from_float": "Must be a whole number.",
    "float_type": "Must be a number.",
    "float_parsing": "Must be a number.",
    "string_type": "Must be text.",
    "dict_type": "Must be a mapping.",
    "mapping_type": "Must be a mapping.",
    "model_type": "Must be a mapping.",
    "list_type": "Must be a list.",
    "tuple_type": "Must be a list.",
    "set_type": "Must be a list.",
    "frozen_set_type": "Must be a list.",
    "greater_than_equal": "Must be at least {ge}.",
    "greater_than": "Must be more than {gt}.",
    "less_than_equal": "Must be at most {le}.",
    "less_than": "Must be less than {lt}.",
    "literal_error": "Must be {expected}.",
    "enum": "Must be {expected}.",
    "none_required": "Must be empty.",
    "string_pattern_mismatch": "Must match the pattern {pattern}",
}


def explained(error: ValidationError, model: type, places: Places) -> ConfigError:
    """One error of ours that says everything `error` says."""
    return together(problems(error, model, places))


def problems(error: ValidationError, model: type, places: Places) -> list[InvalidSettingError]:
    """`error` as errors of ours, one a problem, in the order of the file."""
    found = [_problem(one, model, places) for one in error.errors(include_url=False)]
    return sorted(found, key=lambda problem: (problem.line or 0, problem.column or 0))


def unknown_key(key: str, known: Iterable[str]) -> str:
    """The sentence about a key that nobody knows."""
    listed = sorted(known)
    near = get_close_matches(key, listed, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return f"Unknown key {key!r}.{hint} Known: {', '.join(listed) or 'none'}."


def sentence(kind: str, message: str, context: Mapping[str, Any]) -> str:
    """What pydantic's error of this kind means to someone who wrote YAML."""
    if kind in {"value_error", "assertion_error"}:
        return str(context["error"])
    if kind in _SENTENCES:
        return _SENTENCES[kind].format(**context)
    return f"{message.rstrip('.')}."


def _problem(one: Mapping[str, Any], model: type, places: Places) -> InvalidSettingError:
    path: KeyPath = tuple(one["loc"])
    kind = str(one["type"])
    if path and path[-1] == "[key]":
        path = path[:-1]
        known = str(one.get("ctx", {}).get("expected", ""))
        return places.error(f"Unknown key {path[-1]!r}. It must be {known}.", path, at_key=True)
    if kind == "extra_forbidden":
        known_keys = _keys_at(model, path[:-1])
        return places.error(unknown_key(str(path[-1]), known_keys), path, at_key=True)
    if kind == "missing":
        return places.error(f"The key {path[-1]!r} is missing.", path[:-1])
    return places.error(sentence(kind, str(one["msg"]), one.get("ctx", {})), path)


def _keys_at(model: type, path: KeyPath) -> list[str]:
    here: Any = model
    for part in path:
        here = bare(here)
        if isinstance(here, type) and issubclass(here, BaseModel):
            field = here.model_fields.get(str(part))
            here = field.annotation if field else None
        else:
            inside: Callable[[Any], Any] = get_args
            here = (inside(here) or (None,))[-1]
    here = bare(here)
    if isinstance(here, type) and issubclass(here, BaseModel):
        return list(here.model_fields)
    return []


def bare(annotation: Any) -> Any:
    """`annotation` without ``Annotated`` and without ``| None``."""
    while True:
        origin = get_origin(annotation)
        if origin is Annotated:
            annotation = get_args(annotation)[0]
        elif origin in {Union, types.UnionType}:
            annotation = next(one for one in get_args(annotation) if one is not type(None))
        else:
            return annotation
