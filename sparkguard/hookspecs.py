"""The whole contract of a plugin, on one page.

A plugin is a module or an object whose methods carry `hookimpl`, named by an
entry point in the group ``sparkguard``. Hooks are of two kinds: ``register_*``
adds members, ``on_*`` watches; none intercepts. The members that come with
sparkguard enter through the same hooks.

* ``register_*`` is called once a process, on the driver, and returns a mapping
  from the name that users write to the member. A name is lower case, with
  underscores. Two members of one kind with one name are an error.
* ``on_*`` is called on the driver with one frozen value. Its return value is
  ignored. A watcher that raises is logged once and changes nothing; one that
  blocks holds the query up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pluggy

from sparkguard.core.failure import Cause
from sparkguard.core.policy import Handler
from sparkguard.core.watch import (
    BatchFinished,
    QueryFailed,
    QueryStarted,
    QueryStopped,
    RestartRefused,
    RestartScheduled,
)
from sparkguard.dialects.base import Dialect
from sparkguard.formats.base import Format
from sparkguard.sinks.base import Sink

PROJECT = "sparkguard"
"""Name of the pluggy project and of the entry-point group."""

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)
"""Marks a plugin's function as the implementation of the hook of the same name."""


@hookspec
def register_handlers() -> Mapping[str, type[Handler]]:  # type: ignore[empty-body]
    """Add handlers: frozen dataclasses whose fields are the options in YAML."""


@hookspec
def register_sinks() -> Mapping[str, type[Sink]]:  # type: ignore[empty-body]
    """Add sinks: frozen dataclasses whose fields are the options in YAML."""


@hookspec
def register_formats() -> Mapping[str, type[Format] | Format]:  # type: ignore[empty-body]
    """Add formats: classes, or values that need no options."""


@hookspec
def register_dialects() -> Mapping[str, type[Dialect] | Dialect]:  # type: ignore[empty-body]
    """Add dialects: values, or classes that are made without arguments."""


@hookspec
def register_causes() -> Mapping[str, Cause | str]:  # type: ignore[empty-body]
    """Add causes by qualified exception name: ``{"redis.exceptions.TimeoutError": "transient"}``.

    They are asked after the user's ``classify:`` and before the built-in classifier.
    The exception need not be importable.
    """


@hookspec
def on_query_started(started: QueryStarted) -> None:
    """The supervisor started a query."""


@hookspec
def on_batch_finished(batch: BatchFinished) -> None:
    """A batch of one flow is done, and this is its account."""


@hookspec
def on_query_failed(failed: QueryFailed) -> None:
    """A query ended with an exception."""


@hookspec
def on_restart_scheduled(restart: RestartScheduled) -> None:
    """The supervisor will start a failed query again."""


@hookspec
def on_restart_refused(refused: RestartRefused) -> None:
    """A failed query stays down."""


@hookspec
def on_query_stopped(stopped: QueryStopped) -> None:
    """A query was stopped between two batches, on request."""


@dataclass(slots=True, kw_only=True, eq=False)
class Watcher:
    """One plugin's implementation of one ``on_*`` hook.

    Attributes:
        silenced: it raised before, which was logged; it is still called.
    """

    plugin: str
    hook: str
    call: Callable[[Any], Any]
    silenced: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Members:
    """What the hooks gave: every member by name, and the watchers."""

    handlers: Mapping[str, type[Handler]] = field(default_factory=dict)
    sinks: Mapping[str, type[Sink]] = field(default_factory=dict)
    formats: Mapping[str, type[Format] | Format] = field(default_factory=dict)
    dialects: Mapping[str, Dialect] = field(default_factory=dict)
    causes: Mapping[str, Cause] = field(default_factory=dict)
    watchers: tuple[Watcher, ...] = ()
