"""Plugins: built-ins and entry points in, members out.

Members are resolved on the driver and travel to the workers as values. The
environment variable ``SPARKGUARD_PLUGINS`` restricts what is loaded to a comma
list of entry-point names; empty, it loads none. Built-ins are always there.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import logging
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final

import pluggy

from sparkguard import events, hookspecs
from sparkguard.core.failure import Cause
from sparkguard.core.version import VERSION
from sparkguard.core.watch import Event
from sparkguard.errors import DuplicateNameError, PluginError, UnknownNameError
from sparkguard.hookspecs import PROJECT, Members, Watcher, hookimpl

VARIABLE: Final = "SPARKGUARD_PLUGINS"
"""The environment variable that restricts which plugins are loaded."""

KINDS: Final = {
    "register_handlers": "handler",
    "register_sinks": "sink",
    "register_formats": "format",
    "register_dialects": "dialect",
    "register_causes": "cause",
}
"""What each registration hook adds."""

_NAME = re.compile(r"[a-z][a-z0-9_]*")


class _Handlers:
    @hookimpl
    def register_handlers(self) -> Mapping[str, Any]:
        from sparkguard.handlers.dead_letter import DeadLetterHandler
        from sparkguard.handlers.fail import FailHandler
        from sparkguard.handlers.log_and_continue import LogAndContinueHandler
        from sparkguard.handlers.restart import RestartHandler
        from sparkguard.handlers.retry_later import RetryLaterHandler

        return {
            "dead_letter": DeadLetterHandler,
            "fail": FailHandler,
            "log_and_continue": LogAndContinueHandler,
            "restart": RestartHandler,
            "retry_later": RetryLaterHandler,
        }


class _Sinks:
    @hookimpl
    def register_sinks(self) -> Mapping[str, Any]:
        from sparkguard.sinks.file import FileSink
        from sparkguard.sinks.kafka import KafkaSink
        from sparkguard.sinks.memory import MemorySink

        return {"file": FileSink, "kafka": KafkaSink, "memory": MemorySink}


class _Formats:
    @hookimpl
    def register_formats(self) -> Mapping[str, Any]:
        from sparkguard.formats.json import Json
        from sparkguard.formats.raw import Raw
        from sparkguard.formats.text import Text

        return {"json": Json, "raw": Raw, "text": Text}


class _Dialects:
    @hookimpl
    def register_dialects(self) -> Mapping[str, Any]:
        from sparkguard.dialects.connect import ConnectDialect
        from sparkguard.dialects.kafka_streams import KafkaStreamsDialect
        from sparkguard.dialects.native import NativeDialect
        from sparkguard.dialects.spring import SpringDialect

        return {
            "connect": ConnectDialect,
            "kafka_streams": KafkaStreamsDialect,
            "native": NativeDialect,
            "spring": SpringDialect,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugin:
    """A plugin as found: not imported yet.

    Attributes:
        source: the entry point, or the plugin itself.
    """

    name: str
    distribution: str | None = None
    version: str | None = None
    source: Any

    @property
    def label(self) -> str:
        """Name and distribution, for messages."""
        return f"{self.name} ({self.distribution})" if self.distribution else self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """What one plugin brings, for `sparkguard plugins`.

    Attributes:
        members: names by kind (``handler``, ``sink``, …).
        watches: the ``on_*`` hooks it implements.
        error: why it cannot be used, if so.
    """

    name: str
    distribution: str | None
    version: str | None
    members: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    watches: tuple[str, ...] = ()
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Contribution:
    members: Mapping[str, Mapping[str, Any]]
    watchers: tuple[Watcher, ...]


def load(plugins: Iterable[tuple[str, object]] | None = None) -> Members:
    """The members of the built-ins and of every installed plugin; found once a process.

    Args:
        plugins: (name, plugin) to load beside the built-ins instead of what is installed.

    Raises:
        PluginError: a plugin cannot be imported or breaks the contract.
        DuplicateNameError: two members of one kind have one name.
        UnknownNameError: ``SPARKGUARD_PLUGINS`` names a plugin that is not installed.
    """
    if plugins is None:
        return _load_installed(os.environ.get(VARIABLE))
    return _assemble([*_built_in(), *(Plugin(name=name, source=it) for name, it in plugins)])


def installed() -> list[Installed]:
    """Every plugin in use, the built-ins first; a broken one carries its error."""
    return [_describe(plugin) for plugin in [*_built_in(), *_found(os.environ.get(VARIABLE))]]


def notify(members: Members, event: Event) -> None:
    """Tell every watcher of `event`; one that raises is logged once and changes nothing."""
    for watcher in members.watchers:
        if watcher.hook != event.hook:
            continue
        try:
            watcher.call(event)
        except (Exception, SystemExit) as error:
            if not watcher.silenced:
                watcher.silenced = True
                _log_failure(watcher, error)


@functools.cache
def _load_installed(selection: str | None) -> Members:
    return _assemble([*_built_in(), *_found(selection)])


def _built_in() -> list[Plugin]:
    return [
        Plugin(name=name, distribution=PROJECT, version=VERSION, source=source)
        for name, source in (
            ("handlers", _Handlers),
            ("sinks", _Sinks),
            ("formats", _Formats),
            ("dialects", _Dialects),
        )
    ]


def _found(selection: str | None) -> list[Plugin]:
    found: dict[str, Plugin] = {}
    for entry in entry_points(group=PROJECT):
        dist = entry.dist
        plugin = Plugin(
            name=entry.name,
            distribution=dist.name if dist else None,
            version=dist.version if dist else None,
            source=entry,
        )
        other = found.setdefault(entry.name, plugin)
        # A folder that stands on the path twice lists its distributions twice.
        if other.distribution != plugin.distribution:
            raise DuplicateNameError("plugin", entry.name, other.label, plugin.label)
    if selection is None:
        return [found[name] for name in sorted(found)]
    wanted = [name for name in map(str.strip, selection.split(",")) if name]
    for name in wanted:
        if name not in found:
            raise UnknownNameError("plugin", name, found, where=VARIABLE)
    return [found[name] for name in sorted(set(wanted))]


def _assemble(plugins: Sequence[Plugin]) -> Members:
    families: dict[str, dict[str, Any]] = {kind: {} for kind in KINDS.values()}
    owners: dict[tuple[str, str], str] = {}
    watchers: list[Watcher] = []
    for plugin in plugins:
        given = _contribution(plugin)
        watchers.extend(given.watchers)
        for kind, members in given.members.items():
            for name, member in members.items():
                first = owners.setdefault((kind, name), plugin.label)
                if name in families[kind]:
                    raise DuplicateNameError(kind, name, first, plugin.label)
                families[kind][name] = member
    return Members(
        handlers=families["handler"],
        sinks=families["sink"],
        formats=families["format"],
        dialects=families["dialect"],
        causes=families["cause"],
        watchers=tuple(watchers),
    )


def _contribution(plugin: Plugin) -> _Contribution:
    members: dict[str, Mapping[str, Any]] = {}
    watchers: list[Watcher] = []
    for hook, call in _implementations(plugin).items():
        if hook in KINDS:
            members[KINDS[hook]] = _registered(plugin, hook, call)
        else:
            watchers.append(Watcher(plugin=plugin.label, hook=hook, call=call))
    return _Contribution(members=members, watchers=tuple(watchers))


def _implementations(plugin: Plugin) -> dict[str, Callable[..., Any]]:
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(hookspecs)
    source = _imported(plugin)
    try:
        manager.register(source, plugin.name)
        manager.check_pending()
    except pluggy.PluginValidationError as error:
        raise _broken(plugin, " ".join(str(error).split())) from error
    found: dict[str, Callable[..., Any]] = {}
    for caller in manager.get_hookcallers(source) or []:
        for impl in caller.get_hookimpls():
            if impl.hookwrapper or impl.wrapper:
                raise _broken(
                    plugin, f"{caller.name} is a wrapper; a plugin watches, it never intercepts"
                )
            found[caller.name] = functools.partial(_call, impl.function, len(impl.argnames))
    if not found:
        raise _broken(plugin, "it implements no hook; mark its functions with sparkguard.hookimpl")
    return found


def _call(function: Callable[..., Any], takes: int, *event: Any) -> Any:
    return function(*event[:takes])


def _imported(plugin: Plugin) -> Any:
    try:
        source = plugin.source.load() if isinstance(plugin.source, EntryPoint) else plugin.source
        return source() if inspect.isclass(source) else source
    except (Exception, SystemExit) as error:
        raise _broken(plugin, f"it cannot be imported: {type(error).__name__}: {error}") from error


def _registered(plugin: Plugin, hook: str, call: Callable[[], Any]) -> Mapping[str, Any]:
    try:
        given = call()
    except (Exception, SystemExit) as error:
        raise _broken(plugin, f"{hook} raised {type(error).__name__}: {error}") from error
    if not isinstance(given, Mapping):
        raise _broken(plugin, f"{hook} must return a mapping, not {type(given).__name__}")
    return {name: _member(plugin, KINDS[hook], name, given[name]) for name in given}


def _member(plugin: Plugin, kind: str, name: Any, member: Any) -> Any:
    if kind == "cause":
        if not isinstance(name, str) or member not in tuple(Cause):
            known = ", ".join(Cause)
            raise _broken(plugin, f"the cause of {name!r} must be one of {known}, not {member!r}")
        return Cause(member)
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise _broken(plugin, f"the {kind} name {name!r} must be lower case with underscores")
    problem = _FAULTS[kind](member)
    if problem:
        raise _broken(plugin, f"the {kind} {name!r} {problem}")
    if kind != "dialect" or not inspect.isclass(member):
        return member
    try:
        return member()
    except Exception as error:
        raise _broken(
            plugin, f"the dialect {name!r} cannot be made without arguments: {error}"
        ) from error


def _lacks(member: Any, *methods: str) -> str | None:
    missing = [method for method in methods if not hasattr(member, method)]
    return f"has no {missing[0]}()" if missing else None


def _not_frozen_with(*methods: str) -> Callable[[Any], str | None]:
    def fault(member: Any) -> str | None:
        if not inspect.isclass(member) or not dataclasses.is_dataclass(member):
            return "must be a frozen dataclass, given as a class"
        if not member.__dataclass_params__.frozen:  # type: ignore[attr-defined]
            return "must be frozen: @dataclass(frozen=True)"
        return _lacks(member, *methods)

    return fault


_FAULTS: Final[dict[str, Callable[[Any], str | None]]] = {
    "handler": _not_frozen_with("decide"),
    "sink": _not_frozen_with("open", "check", "refuses"),
    "format": lambda member: _lacks(member, "decoder"),
    "dialect": lambda member: _lacks(member, "headers", "read"),
}


def _describe(plugin: Plugin) -> Installed:
    names: dict[str, tuple[str, ...]] = {}
    watches: tuple[str, ...] = ()
    problem = None
    try:
        given = _contribution(plugin)
        names = {kind: tuple(sorted(members)) for kind, members in given.members.items()}
        watches = tuple(sorted(watcher.hook for watcher in given.watchers))
    except PluginError as error:
        problem = str(error)
    return Installed(
        name=plugin.name,
        distribution=plugin.distribution,
        version=plugin.version,
        members=names,
        watches=watches,
        error=problem,
    )


def _broken(plugin: Plugin, problem: str) -> PluginError:
    return PluginError(f"{problem}.", plugin=plugin.name, distribution=plugin.distribution)


def _log_failure(watcher: Watcher, error: BaseException) -> None:
    events.log(
        events.HOOK_FAILED,
        level=logging.WARNING,
        plugin=watcher.plugin,
        hook=watcher.hook,
        exception=f"{type(error).__name__}: {error}",
    )
