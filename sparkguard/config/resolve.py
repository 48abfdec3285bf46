"""Resolve: names in the settings become values, layer over layer.

A stage's own settings come before ``defaults:``, and those before the built-in
defaults. What comes out travels to the workers; no name is looked up there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from sparkguard.config.duration import seconds
from sparkguard.config.exceptions import exception_name
from sparkguard.config.model import HandlerSettings, Member, Model, Settings, StageSettings
from sparkguard.config.options import made
from sparkguard.config.place import KeyPath, together
from sparkguard.config.retry_topics import check_retry_later
from sparkguard.core.failure import Category, Cause
from sparkguard.core.policy import Budget, Handler, Policy, Retry
from sparkguard.errors import ConfigError, UnknownNameError
from sparkguard.handlers.dead_letter import DeadLetterHandler
from sparkguard.handlers.log_and_continue import LogAndContinueHandler
from sparkguard.hookspecs import Members
from sparkguard.sinks.base import Sink

DEFAULT_SINK: Final = "default"
"""Name of the sink for stages that name none."""

DEFAULT_SINK_PATH: Final = "dead-letters"
"""Where the default sink keeps its files when the settings have no sink of that name."""

DEFAULT_HANDLERS: Final = {
    Category.DESERIALIZATION: "dead_letter",
    Category.PROCESSING: "dead_letter",
    Category.PRODUCTION: "fail",
}
"""Who decides about poison, by category, when nothing is said."""

MAX_CALLS: Final = {
    Category.DESERIALIZATION: 5_000,
    Category.PROCESSING: 5_000,
    Category.PRODUCTION: 1_000,
}
"""Calls that may look for the bad rows of one batch; in production each is a write."""

_WHOLE_BATCH: Final = {"skip": "log_and_continue", "dead_letter": "dead_letter"}

_BY_CAUSE: Final = {
    "on_transient": "restart",
    "on_programming": "fail",
    "on_fatal": "fail",
    "on_crash": "fail",
}

_LATER: Final = ("handler", "on_transient")
"""Those for which `retry_later` of a stage stands."""

_M = TypeVar("_M", bound=Model)


def policy(
    settings: Settings,
    stage_name: str,
    category: Category,
    members: Members,
    *,
    isolates: bool = True,
) -> Policy:
    """What the settings say for one stage, every name resolved.

    Args:
        isolates: bad rows of the stage can be looked for, if the settings say so.

    Raises:
        UnknownNameError: a handler, sink or exception that does not exist.
        InvalidSettingError: a handler's options are wrong, or several things are.
    """
    resolver = _Resolver(settings, members)
    stage = settings.stages.get(stage_name, StageSettings())
    merged = _merge(settings.defaults, stage)
    layers = _Layers(stage_name, settings.defaults, stage)
    # Whoever allows a whole batch to leave, or has bad rows looked for, wants to go on.
    asked = _WHOLE_BATCH[merged.whole_batch] if merged.whole_batch else None
    isolate = merged.isolate.rows and isolates
    handler = asked or ("dead_letter" if isolate else DEFAULT_HANDLERS[category])
    handlers = {
        name: resolver.handler(*layers.handler(name, category), default)
        for name, default in {"handler": handler, **_BY_CAUSE}.items()
    }
    if category is Category.PRODUCTION:
        # No worker calls its function; what `defaults:` says is about the flows.
        handlers["on_crash"] = None
    by_exception = resolver.by_exception(layers)
    classify = resolver.classify(layers)
    sink = resolver.sink_name(merged.sink or DEFAULT_SINK, layers.path("sink"))
    if stage.record_timeout is not None and category is Category.PRODUCTION:
        raise ConfigError(
            f"Stage {stage_name!r}: 'record_timeout' bounds the functions of a flow's stages; "
            "a foreach_batch or produce is bounded by its client's own timeouts."
        )
    _raise(resolver.problems)
    made = Policy(
        **handlers,
        by_exception=by_exception,
        classify=classify,
        sink=sink,
        retry=_retry(merged),
        task_timeout=seconds(merged.task_timeout),
        record_timeout=seconds(merged.record_timeout or "0s") or None,
        budget=_budget(merged),
        on_null=merged.on_null,
        redact=settings.redact,
        isolate=isolate,
        max_calls=merged.isolate.max_calls or MAX_CALLS[category],
        writes=merged.writes,
        whole_batch=merged.whole_batch,
    )
    check_retry_later(settings, stage_name, category, made)
    return made


def sinks(settings: Settings, members: Members) -> dict[str, Sink]:
    """Every sink of the settings by name; `DEFAULT_SINK` is always among them.

    Raises:
        UnknownNameError: a sink type, a dialect or an ``overflow`` that does not exist.
        InvalidSettingError: a sink's options are wrong, or several things are.
    """
    resolver = _Resolver(settings, members)
    found: dict[str, Sink] = {}
    for name, one in settings.sinks.items():
        path: KeyPath = ("sinks", name)
        found[name] = resolver.member("sink", members.sinks, one, path)
        resolver.overflow(name, one, path)
    _raise(resolver.problems)
    if DEFAULT_SINK not in found:
        maker: Any = members.sinks["file"]
        found[DEFAULT_SINK] = maker(path=DEFAULT_SINK_PATH)
    return found


def producer(settings: Settings, stage_name: str) -> dict[str, Any]:
    """The settings of librdkafka for one produce stage; the stage's go over the defaults'."""
    stage = settings.stages.get(stage_name, StageSettings())
    return {**settings.defaults.producer, **stage.producer}


def check_foreach_batch(stage_name: str, policy: Policy) -> None:
    """Refuse settings under which rows would be lost or written twice unasked.

    Raises:
        ConfigError: says which setting would ask for it.
    """
    if policy.isolate and policy.writes not in {"upsert", "atomic"}:
        said = "" if policy.writes is None else f", and 'writes: {policy.writes}' says it does not"
        raise ConfigError(
            f"Stage {stage_name!r}: 'isolate: true' calls the function again with parts of a batch "
            f"that it failed on, so the function must bear to see a row again{said}. A plain "
            "append that failed half-way has already written some rows, and would write them "
            "twice. Say 'writes: upsert' (by a key) or 'writes: atomic' (all rows of a call or "
            "none), if that is what it does."
        )
    if policy.whole_batch is not None:
        return
    # With `isolate` poison is a row's own, and no batch leaves for it.
    whole = (policy.on_transient, policy.on_programming, policy.on_fatal)
    for handler in whole if policy.isolate else policy.handlers():
        if isinstance(handler, DeadLetterHandler):
            word, way = "dead_letter", "dead_letter"
        elif isinstance(handler, LogAndContinueHandler):
            word, way = "log_and_continue", "skip"
        else:
            continue
        raise ConfigError(
            f"Stage {stage_name!r}: the handler {word!r} would take the whole batch with it. "
            "Skipping or dead-lettering a whole batch must be asked for in so many words: "
            f"set 'whole_batch: {way}'."
        )


@dataclass(frozen=True, slots=True)
class _Layers:
    """Which layer a setting of one stage comes from."""

    name: str
    defaults: StageSettings
    stage: StageSettings

    def path(self, field_name: str, *more: str | int) -> KeyPath:
        own = field_name in self.stage.model_fields_set
        return (*(("stages", self.name) if own else ("defaults",)), field_name, *more)

    def handler(self, name: str, category: Category) -> tuple[HandlerSettings | None, KeyPath]:
        """Who decides under `name`: of each layer the handler itself, then its `retry_later`."""
        for prefix, layer in self.each():
            later = name in _LATER and (layer is self.stage or category is not Category.PRODUCTION)
            for key in (name, "retry_later") if later else (name,):
                given: HandlerSettings | None = getattr(layer, key)
                if given is not None:
                    return given, (*prefix, key)
        return None, self.path(name)

    def each(self) -> Iterator[tuple[KeyPath, StageSettings]]:
        yield ("stages", self.name), self.stage
        yield ("defaults",), self.defaults


@dataclass(slots=True)
class _Resolver:
    """Looks names up; what is wrong is noted, and looking goes on."""

    settings: Settings
    members: Members
    problems: list[ConfigError] = field(default_factory=list)

    def handler(self, given: HandlerSettings | None, path: KeyPath, default: str = "") -> Any:
        """The handler that `given` names, else the default one."""
        return self.member(
            "handler", self.members.handlers, given or HandlerSettings(type=default), path
        )

    def member(self, kind: str, family: Mapping[str, type], given: Member, path: KeyPath) -> Any:
        """The member that `given` names, with its options."""
        if given.value is not None:
            return given.value
        if given.type not in family:
            places = self.settings.places
            at = (*path, "type") if (*path, "type") in places.values else path
            self.problems.append(places.placed(UnknownNameError(kind, given.type, family), at))
            return None
        value, wrong = made(
            family[given.type],
            given.options,
            path,
            places=self.settings.places,
            members=self.members,
        )
        self.problems += wrong
        if kind == "handler" and isinstance(getattr(value, "sink", None), str):
            self.sink_name(value.sink, (*path, "sink"))
        return value

    def sink_name(self, name: str, path: KeyPath) -> str:
        """`name` itself; noted if there is no such sink."""
        known = {*self.settings.sinks, DEFAULT_SINK}
        if name not in known:
            error = UnknownNameError("sink", name, known)
            self.problems.append(self.settings.places.placed(error, path))
        return name

    def overflow(self, name: str, one: Member, path: KeyPath) -> None:
        """Note an ``overflow`` that leads nowhere or in a circle."""
        target = one.options.get("overflow")
        if not isinstance(target, str):
            return
        self.sink_name(target, (*path, "overflow"))
        other = self.settings.sinks.get(target)
        if target == name or (other is not None and other.options.get("overflow")):
            problem = "An overflow must be another sink, one without an overflow of its own."
            self.problems.append(self.settings.places.error(problem, (*path, "overflow")))

    def by_exception(self, layers: _Layers) -> tuple[tuple[str, Handler], ...]:
        """Handlers by qualified exception name, the stage's before the defaults'."""
        found: dict[str, Handler] = {}
        for prefix, layer in layers.each():
            for name, given in layer.by_exception.items():
                path: KeyPath = (*prefix, "by_exception", name)
                known = self._exception(name, path, at_key=True)
                handler = self.handler(given, path)
                if known is not None:
                    found.setdefault(known, handler)
        return tuple(found.items())

    def classify(self, layers: _Layers) -> tuple[tuple[str, Cause], ...]:
        """Causes by qualified exception name: the stage's, the defaults', the plugins'."""
        found: dict[str, Cause] = {}
        for prefix, layer in layers.each():
            for cause, names in layer.classify.items():
                for index, name in enumerate(names):
                    known = self._exception(name, (*prefix, "classify", cause.value, index))
                    if known is not None:
                        found.setdefault(known, cause)
        for name, cause in self.members.causes.items():
            found.setdefault(name, cause)
        return tuple(found.items())

    def _exception(self, name: str, path: KeyPath, *, at_key: bool = False) -> str | None:
        places = self.settings.places
        try:
            return exception_name(name)
        except UnknownNameError as error:
            self.problems.append(places.placed(error, path, at_key=at_key))
        except ValueError as error:
            self.problems.append(places.error(str(error), path, at_key=at_key))
        return None


def _merge(base: _M, over: _M) -> _M:
    """`base` with everything that `over` says, field by field."""
    said: dict[str, Any] = {}
    for name in over.model_fields_set:
        new, old = getattr(over, name), getattr(base, name)
        deeper = isinstance(new, Model) and not isinstance(new, Member)
        said[name] = _merge(old, new) if deeper else new
    return base.model_copy(update=said)


def _retry(stage: StageSettings) -> Retry:
    backoff = stage.retry.backoff
    return Retry(
        max_attempts=stage.retry.max_attempts,
        initial=seconds(backoff.initial),
        multiplier=backoff.multiplier,
        maximum=seconds(backoff.max),
    )


def _budget(stage: StageSettings) -> Budget | None:
    budget = stage.budget
    if budget.max_ratio >= 1:
        return None
    return Budget(max_ratio=budget.max_ratio, window=budget.window, then=budget.then)


def _raise(problems: list[ConfigError]) -> None:
    if problems:
        raise together(problems)
