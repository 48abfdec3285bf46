"""Evolution: whether what was stored as one type can be read as another.

Both are JSON schemas, which msgspec and pydantic make of a type; only what they write is known.
"""

from __future__ import annotations

from typing import Any

import msgspec

_REF = "#/$defs/{name}"

Schema = dict[str, Any]


def outline(kind: Any) -> Schema:
    """The type as a JSON schema, its definitions under ``$defs``.

    Raises:
        TypeError: msgspec cannot read such a type.
    """
    described = getattr(kind, "model_json_schema", None)
    if described is not None:
        found: Schema = described()
        return found
    (schema,), components = msgspec.json.schema_components(
        [kind], schema_hook=_pydantic, ref_template=_REF
    )
    return {**schema, "$defs": components} if components else schema


def misfit(before: Schema, now: Schema) -> str | None:
    """What in a value of the type before cannot be read as the type now; None if all of it can."""
    if before == now:
        return None
    return _Reading(before.get("$defs", {}), now.get("$defs", {})).misfit(before, now, "")


class _Reading:
    def __init__(self, before: Schema, now: Schema) -> None:
        self._before = before
        self._now = now
        self._seen: set[tuple[str, str]] = set()

    def misfit(self, before: Schema, now: Schema, path: str) -> str | None:
        pair = before.get("$ref", ""), now.get("$ref", "")
        if all(pair):
            # A type that contains itself is asked about once.
            if pair in self._seen:
                return None
            self._seen.add(pair)
        before, now = _resolved(before, self._before), _resolved(now, self._now)
        choices = _choices(now)
        for one in _choices(before):
            said = [self._one(one, other, path) for other in choices]
            if None not in said:
                return said[0] if len(said) == 1 else _said(path, _kind(before), _kind(now))
        return None

    def _one(self, before: Schema, now: Schema, path: str) -> str | None:
        if "$ref" in before or "$ref" in now:
            return self.misfit(before, now, path)
        taken, kind = _values(now), now.get("type")
        if taken is not None:
            return _outside(_values(before), taken, path)
        if kind is None:
            return None  # anything
        given = before.get("type") or _kind_of((_values(before) or [None])[0])
        # Of a time msgspec says only that it is text.
        other = now.get("format") not in {None, "date-time", before.get("format")}
        if other or (given != kind and (given, kind) != ("integer", "number")):
            return _said(path, _kind(before), _kind(now))
        return self._inside(before, now, path)

    def _inside(self, before: Schema, now: Schema, path: str) -> str | None:
        old, new = before.get("properties", {}), now.get("properties", {})
        for name in now.get("required", ()):
            if name not in old:
                at = f"{path}.{name}".lstrip(".")
                return f"field {at!r} was not there, and is now required"
        if len(before.get("prefixItems", ())) < now.get("minItems", 0):
            return f"{_at(path)} had fewer fields, and the new ones have no default"
        if now.get("additionalProperties") is False and (gone := set(old) - set(new)):
            at = f"{path}.{min(gone)}".lstrip(".")
            return f"field {at!r} was there, and is now forbidden"
        pairs = [(old[name], new[name], f"{path}.{name}") for name in old if name in new]
        pairs += [
            (before[part], now[part], f"{path}[]")
            for part in ("items", "additionalProperties")
            if isinstance(before.get(part), dict) and isinstance(now.get(part), dict)
        ]
        pairs += zip(
            before.get("prefixItems", ()),
            now.get("prefixItems", ()),
            [f"{path}[{n}]" for n in range(len(now.get("prefixItems", ())))],
            strict=False,
        )
        said = (self.misfit(one, other, at.lstrip(".")) for one, other, at in pairs)
        return next((one for one in said if one is not None), None)


def _pydantic(kind: Any) -> Schema:
    described = getattr(kind, "model_json_schema", None)
    if described is None:
        raise NotImplementedError  # what msgspec asks of a hook that does not know a type
    found: Schema = described()
    return found


def _resolved(schema: Schema, defined: Schema) -> Schema:
    while "$ref" in schema:
        schema = defined.get(str(schema["$ref"]).rpartition("/")[2], {})
    return schema


def _choices(schema: Schema) -> list[Schema]:
    found: list[Schema] = schema.get("anyOf") or schema.get("oneOf") or [schema]
    return found


def _values(schema: Schema) -> list[Any] | None:
    if "const" in schema:
        return [schema["const"]]
    found: list[Any] | None = schema.get("enum")
    return found


def _outside(before: list[Any] | None, now: list[Any], path: str) -> str | None:
    missing = [value for value in before or [] if value not in now]
    if before is not None and not missing:
        return None
    what = f"the value {missing[0]!r}" if missing else "any value"
    return f"{_at(path)} may hold {what}, and now takes only {now}"


def _kind(schema: Schema) -> str:
    kinds = [
        str(one.get("$ref") or one.get("format") or one.get("type") or _values(one) or "any")
        for one in _choices(schema)
    ]
    return " or ".join(kind.rpartition("/")[2] for kind in kinds)


def _kind_of(value: Any) -> str:
    names = {bool: "boolean", int: "integer", float: "number", str: "string"}
    return names.get(type(value), "null")


def _said(path: str, before: str, now: str) -> str:
    return f"{_at(path)} was {before}, and is now {now}"


def _at(path: str) -> str:
    return f"field {path!r}" if path else "the state"
