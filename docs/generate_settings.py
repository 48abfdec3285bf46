"""The settings page: generated from the models, the members and their dataclasses."""

from __future__ import annotations

import inspect
import json
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import is_dataclass
from typing import Any, Literal, get_args, get_origin

from sparkguard.config.explain import bare
from sparkguard.config.model import Model, Settings, StageSettings
from sparkguard.config.options import options_of
from sparkguard.config.resolve import DEFAULT_HANDLERS
from sparkguard.plugins import load

HEAD = """\
# Settings

One YAML file says what happens when a stage fails. Every setting has a default: an empty file, no
file, and `sg.Guard()` mean the same. `sg.Settings(...)` in code is checked by the same rules.

```yaml
app: orders
state: {path: state/orders}
sinks:
  default: {type: file, path: dead-letters}
  topic:
    type: kafka
    bootstrap_servers: ${KAFKA:-localhost:9092}
    topic: orders.dead
    overflow: default
defaults:
  task_timeout: 5m
stages:
  decode: {handler: log_and_continue}
  price:
    sink: topic
    by_exception: {ValueError: log_and_continue}
    classify: {transient: [ConnectionError]}
    retry: {backoff: {initial: 200ms}}
    budget: {max_ratio: 0.05}
restart: {max_restarts: 5}
```

Check a file with `sparkguard config check guard.yaml --module pipeline`; give your editor the
output of `sparkguard config schema`.

## How it is read

- A setting is looked for in the stage, then in `defaults:`, then in the built-in defaults. Nested
  settings are looked for one by one: a stage that sets `retry.max_attempts` keeps the back-off of
  `defaults:`. Under `by_exception` and `classify` the entries of both are in force, the stage's
  first.
- A handler of a stage sees poison only. First the cause is asked (`on_transient`,
  `on_programming`, `on_fatal`), then `by_exception`, then `handler`.
- An unknown key, a key that stands twice, a wrong type, a handler, sink or exception that does not
  exist: each is an error with file, line, column and key path, before anything starts.
- Durations are text with a unit: `500ms`, `30s`, `5m`, `1h`, `1h30m`. A bare number is an error.
- `yes`, `no`, `on` and `off` are text; write `true` and `false`. A key without a value counts as
  not written.
- `${NAME}` is the environment variable NAME, `${NAME:-default}` has a default for one that is not
  set or empty, and `$$` is a dollar sign. A variable without default that is not set is an error.
  A value is never read as YAML, so it cannot add keys; a plain one may be a number, a quoted one
  is text. Inside `{...}` and `[...]` it must be quoted.
- Exception names are `module.Class`, a builtin (`ValueError`), or a class of the program that
  runs (`__main__.Unpriced`). Their modules are imported when the settings are resolved.
"""


def settings_page() -> str:
    """The page in Markdown."""
    members = load()
    parts = [HEAD, "\n## Every setting\n"]
    parts += _tables(Settings, "", set())
    parts.append("\nWho decides about poison when nothing is said:\n\n| category | handler |\n")
    parts.append("| --- | --- |\n")
    parts += [f"| {category} | `{name}` |\n" for category, name in DEFAULT_HANDLERS.items()]
    for title, family in (("Handlers", members.handlers), ("Sinks", members.sinks)):
        parts.append(f"\n## {title}\n")
        for name, member in sorted(family.items()):
            if not member.__module__.startswith("sparkguard."):
                continue
            parts += _member(name, member)
    return "".join(parts)


def _tables(model: type[Model], path: str, seen: set[type]) -> Iterator[str]:
    deeper: list[tuple[str, type[Model]]] = []
    both = " and `defaults`" if path == "stages.<name>" else ""
    title = f"`{path}`{both}" if path else "Top level"
    yield f"\n### {title}\n\n"
    if path:
        yield f"{_first(model)}\n\n"
    yield "| key | type | default | |\n| --- | --- | --- | --- |\n"
    for name, info in model.model_fields.items():
        inner = _model_in(info.annotation)
        nested = inner is not None and "type" not in inner.model_fields
        options = nested or name == "retry_later"
        kind = "mapping" if options or get_origin(info.annotation) is dict else _kind(info)
        default = "" if nested else _default(info.get_default(call_default_factory=True))
        yield f"| `{name}` | {kind} | {default} | {info.description} |\n"
        if nested and inner is not None and inner not in seen:
            seen.add(inner)
            below = f"{name}.<name>" if get_origin(info.annotation) is dict else name
            deeper.append((f"{path}.{below}" if path else below, inner))
    for below, inner in deeper:
        yield from _tables(inner, "stages.<name>" if inner is StageSettings else below, seen)


def _model_in(annotation: Any) -> type[Model] | None:
    found = bare(annotation)
    if get_origin(found) is dict:
        found = bare(get_args(found)[1])
    return found if isinstance(found, type) and issubclass(found, Model) else None


def _kind(info: Any) -> str:
    kind = bare(info.annotation)
    if get_origin(kind) is Literal:
        return ", ".join(f"`{one}`" for one in get_args(kind))
    if any("pattern" in str(meta) and "ms" in str(meta) for meta in info.metadata):
        return "duration"
    if _model_in(info.annotation) is not None:
        return "name, or mapping with `type`"
    if get_origin(kind) is tuple:
        return "list of text"
    return {bool: "true, false", int: "whole number", float: "number"}.get(kind, "text")


def _default(value: Any) -> str:
    if value is None or value in ({}, ()):
        return ""
    return f"`{json.dumps(value)}`" if not isinstance(value, str) else f"`{value}`"


def _first(thing: Any) -> str:
    return (inspect.getdoc(thing) or "").split("\n\n")[0].replace("\n", " ")


def _member(name: str, member: type) -> Iterator[str]:
    yield f"\n### `{name}`\n\n{_first(member)}\n"
    if not is_dataclass(member) or not options_of(member):
        return
    texts = _attributes(member)
    yield "\n| option | default | |\n| --- | --- | --- |\n"
    for option in options_of(member):
        default = "required" if option.required else _default(option.default)
        yield f"| `{option.name}` | {default} | {texts.get(option.name, '')} |\n"


def _attributes(member: type) -> dict[str, str]:
    """What the ``Attributes:`` section of a docstring says about each name."""
    _, _, section = (inspect.getdoc(member) or "").partition("Attributes:\n")
    found: dict[str, str] = {}
    names: list[str] = []
    for line in textwrap.dedent(section).splitlines():
        if not line.strip():
            break
        if not line.startswith(" "):
            left, _, text = line.partition(":")
            names = [name.strip() for name in left.split(",")]
            found.update(dict.fromkeys(names, text.strip()))
        else:
            found.update({name: f"{found[name]} {line.strip()}" for name in names})
    return {name: text.replace("``", "`") for name, text in found.items()}


if __name__ == "__main__":
    sys.stdout.write(settings_page())
