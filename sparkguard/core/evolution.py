"""Evolution: whether what was stored as one type can be read as another.

Both are JSON schemas, which msgspec and pydantic make of a type; only what they write is known:
of msgspec neither a datetime (it says text) nor the type of a dict's keys.
"""

from __future__ import annotations

from typing import Any

import msgspec

from sparkguard.core.narrowed import narrowed

_REF = "#/$defs/{name}"
_BYTES = "bytes"
_TEXT = "text"
_TIME = "date-time"

Schema = dict[str, Any]


def outline(kind: Any) -> Schema:
    """The type as a JSON schema, its definitions under ``$defs``.

    Raises:
        TypeError: msgspec cannot read such a type.
    """
    if hasattr(kind, "model_json_schema"):
        return _pydantic(kind)
    (schema,), components = msgspec.json.schema_components(
        [kind], schema_hook=_pydantic, ref_template=_REF
    )
    return {**schema, "$defs": components} if components else schema


def misfit(before: Schema, now: Schema) -> str | None:
    """What in a value of the type before cannot be read as the type now; None if all of it can."""
    if before == now:
        return None
    return _Reading(before.get("$defs", {}), now.get("$defs", {})).misfit(before, now, "")


def refixed(before: dict[str, Any], now: dict[str, Any]) -> str | None:
    """What a checkpoint fixes, and is another now; None if nothing is.

    Args:
        before, now: Spark's type of the ``key``, and whether the stage is ``timed``, has a
            ``ttl``, and ``waits`` beside that for missing events.
    """
    if before["key"] != now["key"]:
        return f"its keys were {before['key']}, and are now {now['key']}"
    for fact, what in (
        ("ttl", "ttl="),
        ("timed", "any of on_timer=, first= and ttl="),
        ("waits", "first= beside ttl="),
    ):
        if before[fact] != now[fact]:
            was, is_now = ("with", "without") if before[fact] else ("without", "with")
            return f"it was made {was} {what}, and the stage is now {is_now}"
    return None


class _Reading:
    def __init__(self, before: Schema, now: Schema) -> None:
        self._before = before
        self._now = now
        self._seen: dict[tuple[str, str], str | None] = {}

    def misfit(self, before: Schema, now: Schema, path: str) -> str | None:
        pair = before.get("$ref", ""), now.get("$ref", "")
        if not all(pair):
            return self._among(before, now, path)
        if pair not in self._seen:
            # Where a type contains itself, the rest of it tells.
            self._seen[pair] = None
            self._seen[pair] = self._among(before, now, path)
        return self._seen[pair]

    def _among(self, before: Schema, now: Schema, path: str) -> str | None:
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
        values = _values(before)
        given = before.get("type") or ("any" if values is None else _kind_of(values[0]))
        if given != kind and (given, kind) != ("integer", "number"):
            return _said(path, _kind(before), _kind(now))
        if not _written_alike(before, now):
            return _said(path, _kind(before), _kind(now))
        return (values is None and narrowed(before, now, _at(path))) or self._inside(
            before, now, path
        )

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
        any_old, any_new = None if old else _further(before), _further(now)
        pairs = [
            (old.get(name, any_old), new.get(name, any_new), f"{path}.{name}")
            for name in {**old, **new}
            if (name in old or any_old is not None) and (name in new or any_new is not None)
        ]
        if "propertyNames" in now:
            names = {"type": "string", **before.get("propertyNames", {})}
            pairs.append((names, {"type": "string", **now["propertyNames"]}, f"{path}.(key)"))
        if any_old is not None and any_new is not None:
            pairs.append((any_old, any_new, f"{path}[]"))
        if isinstance(now.get("items"), dict) and "prefixItems" not in before:
            pairs.append((before.get("items", {}), now["items"], f"{path}[]"))
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
    # States are stored by the fields' own names.
    found: Schema = _told(described(by_alias=False))
    return found


def _told(schema: Any) -> Any:
    """The schema of a pydantic model, where text is told from what msgspec only calls so."""
    if isinstance(schema, list):
        return [_told(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: _told(one) for name, one in schema.items()}
    if found.get("type") == "string" and not {"format", "enum", "const"} & set(found):
        found["format"] = _TEXT
    return found


def _form(schema: Schema) -> str | None:
    if "contentEncoding" in schema:
        return _BYTES
    found: str | None = schema.get("format")
    return _BYTES if found in {"binary", "base64url"} else found


def _written_alike(before: Schema, now: Schema) -> bool:
    was, form = _form(before), _form(now)
    if was == form:
        return True
    if _BYTES in {was, form}:
        return False
    if form is None:
        return True
    # Of a time msgspec says only that it is text.
    return was != _TIME if form == _TEXT else form == _TIME and was is None


def _further(schema: Schema) -> Schema | None:
    """What the values of a dict are, beside its fields; None if there are no such values."""
    found = schema.get("additionalProperties")
    if isinstance(found, dict):
        return found
    bare = schema.get("type") == "object" and "properties" not in schema
    return {} if found is True or bare else None


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
        str(one.get("$ref") or _form(one) or one.get("type") or _values(one) or "any")
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
