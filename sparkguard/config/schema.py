"""Schema: the settings as JSON Schema, with the options of the installed members."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

from pydantic.errors import PydanticInvalidForJsonSchema

from sparkguard.config.duration import PATTERN
from sparkguard.config.explain import bare
from sparkguard.config.model import Settings
from sparkguard.config.options import Option, adapter, is_durations, options_of
from sparkguard.hookspecs import Members

DRAFT: Final = "https://json-schema.org/draft/2020-12/schema"
"""The dialect of JSON Schema that `schema` speaks."""

_Schema = dict[str, Any]


def schema(members: Members) -> _Schema:
    """JSON Schema of a settings file; editors complete and check by it.

    It describes what is written: a number that comes from a variable is text to it.
    """
    made = Settings.model_json_schema()
    definitions: _Schema = made.setdefault("$defs", {})
    families: dict[str, Mapping[str, type]] = {
        "HandlerSettings": members.handlers,
        "SinkSettings": members.sinks,
    }
    for model, family in families.items():
        objects = {
            name: _member(name, cls, members, definitions) for name, cls in sorted(family.items())
        }
        definitions[model] |= _choice(objects)
        for key in ("type", "properties", "required", "additionalProperties"):
            definitions[model].pop(key, None)
    later = {**_member("retry_later", members.handlers["retry_later"], members, definitions)}
    later |= {"properties": {k: v for k, v in later["properties"].items() if k != "type"}}
    later["required"] = []
    definitions["StageSettings"]["properties"]["retry_later"] |= later
    return {"$schema": DRAFT, **made, "title": "sparkguard settings"}


def _choice(objects: Mapping[str, _Schema]) -> _Schema:
    short = [name for name, one in objects.items() if one["required"] == ["type"]]
    return {"anyOf": [{"enum": short}, *objects.values()]}


def _member(name: str, cls: type, members: Members, definitions: _Schema) -> _Schema:
    options = options_of(cls)
    return {
        "type": "object",
        "title": name,
        "description": (inspect.getdoc(cls) or name).splitlines()[0],
        "properties": {
            "type": {"const": name},
            **{one.name: _option(one, cls, members, definitions) for one in options},
        },
        "required": ["type", *(one.name for one in options if one.required)],
        "additionalProperties": False,
    }


def _option(option: Option, cls: type, members: Members, definitions: _Schema) -> _Schema:
    plain = isinstance(option.default, str | int | float | bool) and not option.required
    default = {"default": option.default} if plain else {}
    if option.names_dialect:
        return {"enum": sorted(members.dialects), **default}
    if bare(option.type) is timedelta:
        return {"type": "string", "pattern": PATTERN}
    if is_durations(option):
        return {"type": "array", "items": {"type": "string", "pattern": PATTERN}}
    try:
        made = adapter(option, cls).json_schema()
    except PydanticInvalidForJsonSchema:
        return {}
    definitions.update(made.pop("$defs", {}))
    return {**made, **default}
