"""Options: what users write beside a member's ``type``, as a value of its class."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError, PydanticUndefinedAnnotation

from sparkguard.config.duration import seconds
from sparkguard.config.explain import bare, sentence, unknown_key
from sparkguard.config.place import KeyPath, Places
from sparkguard.dialects.base import Dialect
from sparkguard.errors import ConfigError, InvalidSettingError, PluginError, UnknownNameError
from sparkguard.hookspecs import Members


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option of a member: a field of its dataclass.

    Attributes:
        type: the field's annotation; a `datetime.timedelta` is written as a duration.
    """

    name: str
    type: Any
    required: bool
    default: Any = None

    @property
    def names_dialect(self) -> bool:
        """Whether it takes a dialect, which is written by its name."""
        return self.name == "dialect" or bare(self.type) is Dialect


def is_durations(option: Option) -> bool:
    """Whether it takes a list of durations."""
    return bool(bare(option.type) == tuple[timedelta, ...])


def options_of(member: type) -> list[Option]:
    """The options that users may write for `member`.

    Raises:
        PluginError: the annotations of its fields cannot be read.
    """
    try:
        hints = get_type_hints(member, include_extras=True)
    except (NameError, TypeError) as error:
        raise _unreadable(member, error) from error
    return [
        Option(
            name=one.name,
            type=hints[one.name],
            required=one.default is one.default_factory is dataclasses.MISSING,
            # What a factory makes may differ from call to call: it is nothing to document.
            default=None if one.default is dataclasses.MISSING else one.default,
        )
        for one in dataclasses.fields(member)
        if one.init and not one.name.startswith("_")
    ]


def adapter(option: Option, member: type) -> TypeAdapter[Any]:
    """What validates one option.

    Raises:
        PluginError: its annotation is nothing that can be validated.
    """
    hint = option.type
    config = ConfigDict(arbitrary_types_allowed=True, hide_input_in_errors=True)
    try:
        try:
            return TypeAdapter(hint, config=config)
        except PydanticSchemaGenerationError:
            raise
        except Exception:  # a dataclass or a model brings a configuration of its own
            return TypeAdapter(hint)
    except (PydanticSchemaGenerationError, PydanticUndefinedAnnotation, TypeError) as error:
        raise _unreadable(member, error) from error


def made(
    member: type,
    options: Mapping[str, Any],
    path: KeyPath,
    *,
    places: Places,
    members: Members,
) -> tuple[Any, list[ConfigError]]:
    """The member with `options`, or None and what is wrong with them."""
    known = {option.name: option for option in options_of(member)}
    wrong: list[ConfigError] = [
        places.error(unknown_key(name, ["type", *known]), (*path, name), at_key=True)
        for name in options
        if name not in known
    ]
    values: dict[str, Any] = {}
    for name, option in known.items():
        given = options.get(name, option.default)
        if name not in options and not (option.names_dialect and isinstance(given, str)):
            if option.required:
                wrong.append(places.error(f"The key {name!r} is missing.", path))
            continue
        try:
            values[name] = _value(option, member, given, members)
        except UnknownNameError as error:
            wrong.append(places.placed(error, (*path, name)))
        except ValueError as error:
            wrong += _wrong(error, (*path, name), places)
    if wrong:
        return None, wrong
    try:
        return member(**values), []
    except InvalidSettingError as error:
        # Below the option's own name a key may contain dots, as Kafka's do.
        inside = tuple(part for part in error.key_path.split(".", 1) if part)
        return None, [places.error(error.problem, (*path, *inside))]
    except (ValueError, TypeError, ConfigError) as error:
        return None, [places.error(str(error), path)]


def _wrong(error: ValueError, path: KeyPath, places: Places) -> list[ConfigError]:
    """What is wrong with one option, with its place."""
    if not isinstance(error, ValidationError):
        return [places.error(str(error), path)]
    return [
        places.error(sentence(one["type"], one["msg"], one.get("ctx", {})), (*path, *one["loc"]))
        for one in error.errors(include_url=False)
    ]


def _value(option: Option, member: type, given: Any, members: Members) -> Any:
    kind = bare(option.type)
    if option.names_dialect and isinstance(given, str):
        if given not in members.dialects:
            raise UnknownNameError("dialect", given, members.dialects)
        return members.dialects[given]
    if kind is timedelta and not isinstance(given, timedelta):
        return timedelta(seconds=seconds(given))
    if is_durations(option) and isinstance(given, Sequence) and not isinstance(given, str):
        return tuple(
            one if isinstance(one, timedelta) else timedelta(seconds=seconds(one)) for one in given
        )
    validator = adapter(option, member)
    try:
        return validator.validate_python(given, strict=True)
    except ValidationError:
        # What YAML can write is what JSON can write: there a list may be a tuple and text
        # may be a path, but "5" is still no number and "yes" no boolean.
        try:
            text = json.dumps(given)
        except (TypeError, ValueError):
            return validator.validate_python(given)
        return validator.validate_json(text, strict=True)


def _unreadable(member: type, error: Exception) -> PluginError:
    return PluginError(
        f"the options of {member.__qualname__} cannot be read: {type(error).__name__}: {error}.",
        plugin=member.__module__,
    )
