"""Plugins: what they may register, what is said about broken ones, and watchers."""

import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest

from sparkguard import events, hookspecs, plugins
from sparkguard.core import watch
from sparkguard.core.failure import Cause, Failure
from sparkguard.core.ledger import Account
from sparkguard.core.outcome import Continue, Outcome
from sparkguard.core.watch import BatchFinished, QueryStarted
from sparkguard.dialects.connect import ConnectDialect
from sparkguard.dialects.kafka_streams import KafkaStreamsDialect
from sparkguard.dialects.native import NativeDialect
from sparkguard.dialects.spring import SpringDialect
from sparkguard.errors import DuplicateNameError, PluginError, UnknownNameError
from sparkguard.hookspecs import hookimpl
from sparkguard.plugins import installed, load, notify

BATCH = BatchFinished(app="a", flow="f", account=Account(flow="f"))


@dataclass(frozen=True)
class Shrug:
    """A handler."""

    def decide(self, failure: Failure) -> Outcome:
        return Continue()


def registering(hook: str, value: Any) -> object:
    """A plugin whose only hook returns `value`."""
    return SimpleNamespace(**{hook: hookimpl(_named(hook, lambda: value))})


def watching(hook: str, call: Callable[[Any], Any]) -> object:
    """A plugin that watches one hook."""
    names = {name: spec.__code__.co_varnames[0] for name, spec in _specs("on_").items()}
    scope: dict[str, Any] = {"call": call}
    exec(f"def {hook}({names[hook]}): return call({names[hook]})", scope)
    return SimpleNamespace(**{hook: hookimpl(scope[hook])})


def _named(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    function.__name__ = name
    return function


def _specs(prefix: str) -> dict[str, Any]:
    return {name: value for name, value in vars(hookspecs).items() if name.startswith(prefix)}


def test_built_ins() -> None:
    """The built-ins come in by the same hooks as strangers."""
    members = load([])
    assert set(members.handlers) == {
        "dead_letter",
        "fail",
        "log_and_continue",
        "restart",
        "retry_later",
    }
    assert set(members.sinks) == {"file", "kafka", "memory"}
    assert set(members.formats) == {"json", "raw", "text"}
    assert members.dialects == {
        "connect": ConnectDialect(),
        "kafka_streams": KafkaStreamsDialect(),
        "native": NativeDialect(),
        "spring": SpringDialect(),
    }
    assert members.watchers == ()


def test_register_handlers() -> None:
    """`register_handlers` adds handlers by name."""
    found = load([("p", registering("register_handlers", {"shrug": Shrug}))])
    assert found.handlers["shrug"] is Shrug


def test_register_sinks() -> None:
    """`register_sinks` adds sinks by name."""
    from sparkguard.sinks.file import FileSink

    found = load([("p", registering("register_sinks", {"tape": FileSink}))])
    assert found.sinks["tape"] is FileSink


def test_register_formats() -> None:
    """`register_formats` adds classes and values."""
    from sparkguard.formats.raw import Raw

    found = load([("p", registering("register_formats", {"blob": Raw, "blob2": Raw()}))])
    assert found.formats["blob"] is Raw
    assert found.formats["blob2"] == Raw()


def test_register_dialects() -> None:
    """`register_dialects` adds values; a class is made without arguments."""
    given = {"one": NativeDialect, "two": NativeDialect()}
    found = load([("p", registering("register_dialects", given))])
    assert found.dialects["one"] == found.dialects["two"] == NativeDialect()


def test_register_causes() -> None:
    """`register_causes` adds causes, by word or by value."""
    given = {"redis.Busy": "transient", "x.Y": Cause.FATAL}
    found = load([("p", registering("register_causes", given))])
    assert found.causes == {"redis.Busy": Cause.TRANSIENT, "x.Y": Cause.FATAL}


@dataclass
class Melting:
    """Not frozen."""

    def decide(self, failure: Failure) -> Outcome:
        return Continue()


@dataclass(frozen=True)
class Mute:
    """No handler, no sink."""


class NeedsArgument:
    """A dialect that cannot be made without arguments."""

    def __init__(self, what: str) -> None:
        self.what = what

    headers = read = None


@pytest.mark.parametrize(
    ("hook", "value", "sentence"),
    [
        ("register_handlers", [Shrug], "register_handlers must return a mapping, not list."),
        ("register_handlers", None, "register_handlers must return a mapping, not NoneType."),
        ("register_handlers", {"Shrug": Shrug}, "name 'Shrug' must be lower case"),
        ("register_handlers", {1: Shrug}, "name 1 must be lower case"),
        ("register_handlers", {"shrug": Shrug()}, "given as a class"),
        ("register_handlers", {"shrug": dict}, "must be a frozen dataclass"),
        ("register_handlers", {"shrug": Melting}, "must be frozen"),
        ("register_handlers", {"shrug": Mute}, "the handler 'shrug' has no decide()."),
        ("register_sinks", {"mute": Mute}, "the sink 'mute' has no open()."),
        ("register_formats", {"mute": Mute}, "the format 'mute' has no decoder()."),
        ("register_dialects", {"mute": Mute}, "the dialect 'mute' has no headers()."),
        ("register_dialects", {"x": NeedsArgument}, "cannot be made without arguments"),
        ("register_causes", {"x.Y": "bad luck"}, "must be one of poison, transient,"),
        ("register_causes", {"x.Y": []}, "must be one of poison, transient,"),
    ],
)
def test_bad_return(hook: str, value: object, sentence: str) -> None:
    """A plugin that returns what is no member is named, and told what is wrong."""
    with pytest.raises(PluginError) as caught:
        load([("mine", registering(hook, value))])
    assert str(caught.value).startswith("Plugin 'mine': ")
    assert sentence in str(caught.value)


def raising() -> None:
    """A hook that raises."""
    msg = "boom"
    raise RuntimeError(msg)


def test_hook_raises() -> None:
    """A registration hook that raises is the plugin's fault."""
    plugin = SimpleNamespace(register_sinks=hookimpl(_named("register_sinks", raising)))
    with pytest.raises(PluginError, match="'mine': register_sinks raised RuntimeError: boom"):
        load([("mine", plugin)])


def test_unknown_hook() -> None:
    """A hook that does not exist is an error, not silence."""
    plugin = registering("register_handler", {})
    with pytest.raises(PluginError, match="register_handler"):
        load([("mine", plugin)])


def test_wrong_parameter() -> None:
    """A hook whose parameter has another name is an error that names it."""
    plugin = SimpleNamespace(on_batch_finished=hookimpl(lambda bacth: None))
    with pytest.raises(PluginError, match="bacth"):
        load([("mine", plugin)])


def test_no_hook() -> None:
    """A plugin that forgot the marker is told so."""
    with pytest.raises(PluginError, match="mark its functions"):
        load([("mine", SimpleNamespace(register_sinks=dict))])


def test_wrapper_is_refused() -> None:
    """A plugin watches or adds; it never intercepts."""

    def wrapper(batch: Any) -> Any:
        return (yield)

    plugin = SimpleNamespace(on_batch_finished=hookimpl(wrapper=True)(wrapper))
    with pytest.raises(PluginError, match="it never intercepts"):
        load([("mine", plugin)])


def test_duplicate_name() -> None:
    """Two members of one kind with one name are refused, and both plugins are named."""
    plugin = registering("register_handlers", {"shrug": Shrug})
    with pytest.raises(DuplicateNameError) as caught:
        load([("first", plugin), ("second", registering("register_handlers", {"shrug": Shrug}))])
    assert "'first'" in str(caught.value)
    assert "'second'" in str(caught.value)


def test_built_in_name_is_taken() -> None:
    """A plugin cannot replace what comes with sparkguard."""
    with pytest.raises(
        DuplicateNameError, match=r"already registered by 'handlers \(sparkguard\)'"
    ):
        load([("mine", registering("register_handlers", {"fail": Shrug}))])


EVENTS = [
    kind(account=Account(flow="f")) if kind is BatchFinished else kind()
    for kind in get_args(watch.Event)
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.hook)
def test_every_hook_is_called(event: Any) -> None:
    """P20: each watcher hook gets its one event, and no other."""
    seen: list[Any] = []
    members = load([("w", watching(event.hook, seen.append))])
    for other in EVENTS:
        notify(members, other)
    assert seen == [event]


def test_every_hook_has_an_event() -> None:
    """The hooks, the events and the documented argument are one list."""
    assert set(_specs("on_")) == {event.hook for event in EVENTS}
    for name, spec in _specs("on_").items():
        (parameter,) = (key for key in spec.__annotations__ if key != "return")
        assert spec.__code__.co_varnames == (parameter,)
        kind = getattr(watch, spec.__annotations__[parameter])
        assert kind.hook == name
    assert set(_specs("register_")) == set(plugins.KINDS)


def test_every_hook_has_a_test() -> None:
    """Each registration hook has a test of its own here."""
    for name in _specs("register_"):
        assert f"test_{name}" in globals()


def test_events_are_frozen_with_defaults() -> None:
    """A new fact becomes a field with a default; so nothing but the account is required."""
    for kind in get_args(watch.Event):
        required = [
            one.name
            for one in fields(kind)
            if "MISSING" in f"{one.default}{one.default_factory}"
            and one.default is one.default_factory
        ]
        assert required == (["account"] if kind is BatchFinished else [])
        assert kind.__dataclass_params__.frozen


def test_watcher_without_parameter() -> None:
    """A watcher may take nothing, as pluggy allows."""
    seen: list[int] = []
    plugin = SimpleNamespace(on_batch_finished=hookimpl(lambda: seen.append(1)))
    notify(load([("w", plugin)]), BATCH)
    assert seen == [1]


def test_watcher_raises(caplog: pytest.LogCaptureFixture) -> None:
    """P20: a watcher that raises is logged once, and the others still hear of it."""
    calls: list[Any] = []

    def bad(event: Any) -> None:
        calls.append(event)
        sys.exit(3) if len(calls) > 1 else raising()

    members = load(
        [
            ("bad", watching("on_batch_finished", bad)),
            ("good", watching("on_batch_finished", calls.append)),
        ]
    )
    with caplog.at_level(logging.WARNING, logger="sparkguard"):
        for _ in range(3):
            notify(members, BATCH)
    assert calls == [BATCH] * 6
    (line,) = caplog.records
    assert line.getMessage().startswith(events.HOOK_FAILED)
    for fact in ("bad", "on_batch_finished", "RuntimeError: boom"):
        assert fact in line.getMessage()


class Dist:
    """A distribution, as importlib.metadata gives it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.version = "1.0"


def entry(name: str, module: str, distribution: str) -> EntryPoint:
    """An installed plugin's entry point."""
    made = EntryPoint(name, module, "sparkguard")
    return made._for(Dist(distribution))  # type: ignore[attr-defined,no-any-return]


@pytest.fixture
def install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[Mapping[str, tuple[str, str]]], None]]:
    """Put plugins on the path: {name: (distribution, source)}."""

    def installing(sources: Mapping[str, tuple[str, str]]) -> None:
        found = []
        for name, (distribution, source) in sources.items():
            (tmp_path / f"plugin_{name}.py").write_text(source)
            found.append(entry(name.split("__")[0], f"plugin_{name}", distribution))
            monkeypatch.delitem(sys.modules, f"plugin_{name}", raising=False)
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.setattr(plugins, "entry_points", lambda group: found)
        monkeypatch.delenv(plugins.VARIABLE, raising=False)
        plugins._load_installed.cache_clear()

    yield installing
    plugins._load_installed.cache_clear()


GOOD = """
from sparkguard.hookspecs import hookimpl

@hookimpl
def register_causes():
    return {"good.Error": "transient"}

@hookimpl
def on_query_started(started):
    pass
"""


def test_installed_plugin_is_found(install: Callable[..., None]) -> None:
    """What is installed is loaded, once a process."""
    install({"good": ("sparkguard-good", GOOD)})
    assert load().causes == {"good.Error": Cause.TRANSIENT}
    assert [watcher.plugin for watcher in load().watchers] == ["good (sparkguard-good)"]
    assert load() is load()


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("import nowhere_to_be_found", "cannot be imported: ModuleNotFoundError: No module named"),
        ("def (", "cannot be imported: SyntaxError"),
        ("raise SystemExit(1)", "cannot be imported: SystemExit: 1"),
        ("x = 1", "it implements no hook"),
    ],
)
def test_broken_plugin(install: Callable[..., None], source: str, sentence: str) -> None:
    """A broken plugin is named with the distribution to fix or uninstall."""
    install({"bad": ("sparkguard-bad", source)})
    with pytest.raises(PluginError) as caught:
        load()
    assert str(caught.value).startswith("Plugin 'bad' of distribution 'sparkguard-bad': ")
    assert sentence in str(caught.value)


def test_two_distributions_one_plugin_name(install: Callable[..., None]) -> None:
    """Two distributions with one entry-point name are refused: the first would win silently."""
    install({"good": ("sparkguard-good", GOOD), "good__2": ("sparkguard-better", GOOD)})
    with pytest.raises(DuplicateNameError) as caught:
        load()
    assert "sparkguard-good" in str(caught.value)
    assert "sparkguard-better" in str(caught.value)


def test_variable_restricts(install: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    """SPARKGUARD_PLUGINS names what is loaded; empty loads none; the others are not imported."""
    install({"good": ("sparkguard-good", GOOD), "bad": ("sparkguard-bad", "import nowhere")})
    monkeypatch.setenv(plugins.VARIABLE, " good ,")
    assert load().causes == {"good.Error": Cause.TRANSIENT}
    monkeypatch.setenv(plugins.VARIABLE, "")
    assert load().causes == {}
    assert set(load().handlers) == {
        "dead_letter",
        "fail",
        "log_and_continue",
        "restart",
        "retry_later",
    }
    monkeypatch.setenv(plugins.VARIABLE, "goood")
    with pytest.raises(UnknownNameError, match=r"SPARKGUARD_PLUGINS: Unknown plugin 'goood'. Did"):
        load()


def test_installed_lists_the_broken_too(install: Callable[..., None]) -> None:
    """The list goes on past a broken plugin, and says why it cannot be used."""
    install({"good": ("sparkguard-good", GOOD), "bad": ("sparkguard-bad", "import nowhere")})
    found = {one.name: one for one in installed()}
    assert list(found) == ["handlers", "sinks", "formats", "dialects", "bad", "good"]
    assert found["sinks"].members == {"sink": ("file", "kafka", "memory")}
    good = found["good"]
    assert (good.distribution, good.version) == ("sparkguard-good", "1.0")
    assert (good.members, good.watches) == ({"cause": ("good.Error",)}, ("on_query_started",))
    assert "No module named 'nowhere'" in str(found["bad"].error)


def test_started_has_flows() -> None:
    """A watcher learns the stages of every flow before the first batch."""
    started = QueryStarted(flows={"orders": ("decode", "price")})
    assert started.flows["orders"] == ("decode", "price")
