"""Parse: YAML as plain values, with the place of each.

Stricter than YAML 1.1, which PyYAML speaks: keys are text, a key stands once,
``yes``, ``no``, ``on`` and ``off`` are text, ``012`` and ``1:30`` are no numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import yaml

from sparkguard.config.interpolate import interpolate
from sparkguard.config.place import KeyPath, Place, Places
from sparkguard.errors import InvalidSettingError

_TAG: Final = "tag:yaml.org,2002:"
_MERGE: Final = _TAG + "merge"


class _Loader(yaml.SafeLoader):
    """SafeLoader with the scalars of YAML 1.2's core schema."""

    yaml_implicit_resolvers: dict[str, list[Any]] = {}  # noqa: RUF012  # PyYAML's own way


for _tag, _regexp, _first in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?(?:0|[1-9][0-9]*)", list("-+0123456789")),
    (
        "float",
        r"[-+]?(?:\.[0-9]+|(?:0|[1-9][0-9]*)(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?",
        list("-+.0123456789"),
    ),
    ("merge", r"<<", ["<"]),
):
    _Loader.add_implicit_resolver(_TAG + _tag, re.compile(rf"(?:{_regexp})\Z"), _first)


@dataclass(frozen=True, slots=True)
class Parsed:
    """The values of a file, where they stand, and what is wrong with them so far."""

    value: Any
    places: Places
    problems: list[InvalidSettingError]


def parse(text: str, file: str, variables: Mapping[str, str]) -> Parsed:
    """The values in `text`, with `variables` put in.

    Raises:
        InvalidSettingError: `text` is no YAML, or too deeply nested.
    """
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        reader = _Reader(file, variables, loader)
        value = {} if node is None else reader.value(node, ())
    except yaml.MarkedYAMLError as error:
        raise _syntax(error, text, file) from None
    except yaml.YAMLError as error:
        why = " ".join(str(error).split())
        raise InvalidSettingError(f"This is no YAML: {why}.", file=file) from None
    except RecursionError:
        raise InvalidSettingError("The settings are nested too deeply.", file=file) from None
    return Parsed(value, reader.places, reader.problems)


def _syntax(error: yaml.MarkedYAMLError, text: str, file: str) -> InvalidSettingError:
    mark = error.problem_mark or error.context_mark
    line = text.splitlines()[mark.line] if mark and mark.line < len(text.splitlines()) else ""
    hint = " Inside {…} and […] a value with ${…} must be quoted." if "${" in line else ""
    return InvalidSettingError(
        f"This is no YAML: {error.problem or error.context}.{hint}",
        file=file,
        line=mark.line + 1 if mark else None,
        column=mark.column + 1 if mark else None,
    )


@dataclass(slots=True)
class _Reader:
    """Turns nodes into values; what is wrong is noted, and reading goes on."""

    file: str
    variables: Mapping[str, str]
    loader: _Loader
    places: Places = field(default_factory=Places)
    problems: list[InvalidSettingError] = field(default_factory=list)
    open: list[yaml.Node] = field(default_factory=list)

    def value(self, node: yaml.Node, path: KeyPath) -> Any:
        """The value of `node`."""
        self.places.values[path] = self._place(node)
        if any(node is outer for outer in self.open):
            return self._wrong("The alias refers to a mapping or list that it stands in.", path)
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path)
        self.open.append(node)
        try:
            if isinstance(node, yaml.MappingNode):
                return self._mapping(node, path)
            return [self.value(item, (*path, i)) for i, item in enumerate(node.value)]
        finally:
            self.open.pop()

    def _place(self, node: yaml.Node) -> Place:
        return Place(self.file, node.start_mark.line + 1, node.start_mark.column + 1)

    def _wrong(self, problem: str, path: KeyPath, *, at_key: bool = False) -> None:
        self.problems.append(self.places.error(problem, path, at_key=at_key))

    def _mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Any]:
        found: dict[str, Any] = {}
        first: dict[str, Place] = {}
        for key_node, value_node in node.value:
            if key_node.tag == _MERGE:
                continue
            if not isinstance(key_node, yaml.ScalarNode):
                self._wrong("A key must be text.", path)
                continue
            key = key_node.value
            self.places.keys[*path, key] = self._place(key_node)
            if key in found:
                problem = f"Duplicate key {key!r}; the first stands in line {first[key].line}."
                self._wrong(problem, (*path, key), at_key=True)
                continue
            first[key] = self._place(key_node)
            found[key] = self.value(value_node, (*path, key))
        for key, value_node in self._merged(node, path):
            if key not in found:
                found[key] = self.value(value_node, (*path, key))
        return found

    def _merged(self, node: yaml.MappingNode, path: KeyPath) -> Iterator[tuple[str, yaml.Node]]:
        for key_node, value_node in node.value:
            if key_node.tag != _MERGE:
                continue
            listed = isinstance(value_node, yaml.SequenceNode)
            for source in value_node.value if listed else [value_node]:
                if any(source is outer for outer in self.open):
                    self._wrong("The alias refers to a mapping that it stands in.", path)
                elif isinstance(source, yaml.MappingNode):
                    yield from (
                        (key.value, value) for key, value in source.value if key.tag != _MERGE
                    )
                    yield from self._merged(source, path)
                else:
                    self._wrong("'<<' takes a mapping, or a list of mappings.", path)

    def _scalar(self, node: yaml.ScalarNode, path: KeyPath) -> Any:
        text, tag = node.value, node.tag
        if "$" in text:
            try:
                text = interpolate(text, self.variables)
            except ValueError as error:
                return self._wrong(str(error), path)
            # As if it had been written there: a quoted scalar stays text, a plain one may
            # become a number. It is not parsed, so a value cannot bring structure with it.
            if node.style is None:
                tag = self.loader.resolve(  # type: ignore[no-untyped-call]
                    yaml.ScalarNode, text, (True, False)
                )
        return self._typed(tag, text, path)

    def _typed(self, tag: str, text: str, path: KeyPath) -> Any:
        kind = tag.removeprefix(_TAG)
        if kind == "str":
            return text
        if kind == "null":
            return None
        if kind == "bool":
            return text.lower() == "true"
        if kind not in {"int", "float"}:
            return self._wrong(f"The tag {tag!r} is not supported.", path)
        try:
            return int(text) if kind == "int" else float(text)
        except ValueError:
            return self._wrong("This is no number.", path)
