"""What settings resolve to: layers, names, and what is said about names nobody knows."""

import pickle
from datetime import timedelta
from pathlib import Path

import pytest

from sparkguard.config.load import loads
from sparkguard.config.model import Settings, StageSettings
from sparkguard.config.resolve import check_foreach_batch, policy, sinks
from sparkguard.core.failure import Category, Cause
from sparkguard.core.policy import Budget, Policy, Retry
from sparkguard.dialects.native import NativeDialect
from sparkguard.errors import ConfigError, InvalidSettingError, PluginError, UnknownNameError
from sparkguard.handlers.dead_letter import DeadLetterHandler
from sparkguard.handlers.fail import FailHandler
from sparkguard.handlers.log_and_continue import LogAndContinueHandler
from sparkguard.handlers.restart import RestartHandler
from sparkguard.sinks.file import FileSink
from sparkguard.sinks.kafka import KafkaSink
from tests.unit.config.members import Colour, PickyHandler, TapeSink, members

MEMBERS = members()


def resolved(text: str, stage: str = "s", category: Category = Category.PROCESSING) -> Policy:
    """The policy of one stage under the settings in `text`."""
    return policy(loads(text, "g.yaml"), stage, category, MEMBERS)


@pytest.mark.parametrize(
    ("category", "handler"),
    [
        (Category.DESERIALIZATION, DeadLetterHandler()),
        (Category.PROCESSING, DeadLetterHandler()),
        (Category.PRODUCTION, FailHandler()),
    ],
)
def test_defaults(category: Category, handler: object) -> None:
    """P9, P10: unsaid, an outage restarts, wrong code fails, and poison goes by category."""
    found = policy(Settings(), "s", category, MEMBERS)
    assert found == Policy(
        handler=handler,  # type: ignore[arg-type]
        max_calls=1_000 if category is Category.PRODUCTION else 5_000,
        on_transient=RestartHandler(),
        on_programming=FailHandler(),
        on_fatal=FailHandler(),
        on_crash=None if category is Category.PRODUCTION else FailHandler(),
        classify=tuple(MEMBERS.causes.items()),
        retry=Retry(max_attempts=None, initial=0.1, multiplier=2.0, maximum=10.0),
        task_timeout=300.0,
        budget=Budget(max_ratio=0.1, window=1000, then="fail"),
    )


def test_stage_over_defaults_over_built_in() -> None:
    """Each single setting comes from the nearest layer that says it."""
    text = """
defaults:
  handler: fail
  sink: default
  task_timeout: 1m
  retry: {max_attempts: 7, backoff: {initial: 1s, max: 20s}}
  budget: {window: 50, then: restart}
  by_exception: {ValueError: fail, KeyError: restart}
  classify: {transient: [KeyError, OSError]}
stages:
  s:
    handler: log_and_continue
    retry: {backoff: {initial: 2s}}
    budget: {max_ratio: 0.5}
    by_exception: {ValueError: dead_letter}
    classify: {poison: [KeyError]}
"""
    found = resolved(text)
    assert found.handler == LogAndContinueHandler()
    assert found.task_timeout == 60
    assert found.retry == Retry(max_attempts=7, initial=2, multiplier=2, maximum=20)
    assert found.budget == Budget(max_ratio=0.5, window=50, then="restart")
    assert dict(found.by_exception) == {
        "ValueError": DeadLetterHandler(),
        "KeyError": RestartHandler(),
    }
    assert dict(found.classify) == {
        "KeyError": Cause.POISON,
        "OSError": Cause.TRANSIENT,
        "redis.exceptions.BusyLoadingError": Cause.TRANSIENT,
    }
    other = resolved(text, "other")
    assert other.handler == FailHandler()
    assert other.retry.initial == 1


def test_budget_without_limit() -> None:
    """A ratio of 1 is no budget at all."""
    assert resolved("defaults: {budget: {max_ratio: 1}}").budget is None
    assert resolved("defaults: {budget: {max_ratio: 0}}").budget == Budget(max_ratio=0)


def test_redact_is_everywhere() -> None:
    """P18: the patterns of `redact:` reach every stage."""
    assert resolved("redact: ['a+', 'b']").redact == ("a+", "b")


def test_policy_pickles() -> None:
    """A policy travels to the workers as a value."""
    found = resolved(
        "stages: {s: {handler: {type: picky, limit: 1}, by_exception: {KeyError: fail}}}"
    )
    assert pickle.loads(pickle.dumps(found)) == found


def test_handler_with_options() -> None:
    """Options are the fields of the handler's dataclass, of any type that text can say."""
    text = """
stages:
  s:
    handler:
      type: picky
      limit: 3
      ratio: 1
      names: [a, b]
      colour: blue
      wait: 90s
      folder: /tmp/x
      strict: true
"""
    assert resolved(text).handler == PickyHandler(
        limit=3,
        ratio=1.0,
        names=("a", "b"),
        colour=Colour.BLUE,
        wait=timedelta(seconds=90),
        folder=Path("/tmp/x"),
        strict=True,
    )


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ("", "g.yaml:1:23: stages.s.handler: The key 'limit' is missing."),
        (", limt: 3, limit: 2", "stages.s.handler.limt: Unknown key 'limt'. Did you mean 'limit'?"),
        (", limit: '3'", "g.yaml:1:44: stages.s.handler.limit: Must be a whole number."),
        (", limit: 1, strict: yes", "stages.s.handler.strict: Must be true or false"),
        (", limit: 1, names: a", "stages.s.handler.names: Must be a list."),
        (", limit: 1, names: [1]", "stages.s.handler.names[0]: Must be text."),
        (", limit: 1, colour: green", "stages.s.handler.colour: Must be 'red' or 'blue'."),
        (", limit: 1, wait: 90", "stages.s.handler.wait: A duration needs a unit"),
        (", limit: 101", "g.yaml:1:23: stages.s.handler: A limit above 100 helps nobody."),
    ],
)
def test_wrong_option(options: str, sentence: str) -> None:
    """A wrong option is one sentence with its place."""
    with pytest.raises(InvalidSettingError) as caught:
        resolved(f"stages: {{s: {{handler: {{type: picky{options}}}}}}}")
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "stages: {s: {handler: dead_leter}}",
            "g.yaml:1:23: stages.s.handler: Unknown handler 'dead_leter'. Did you mean 'dead_l",
        ),
        ("defaults: {on_transient: restrt}", "g.yaml:1:26: defaults.on_transient: Unknown"),
        ("stages: {s: {by_exception: {KeyError: drop}}}", "by_exception.KeyError: Unknown"),
        ("stages: {s: {sink: topc}}", "g.yaml:1:20: stages.s.sink: Unknown sink 'topc'."),
        ("defaults: {sink: topc}", "g.yaml:1:18: defaults.sink: Unknown sink 'topc'."),
        ("stages: {s: {handler: {type: dead_letter, sink: x}}}", "handler.sink: Unknown sink 'x'"),
        ("stages: {s: {by_exception: {ValeError: fail}}}", "Did you mean 'ValueError'?"),
        (
            "stages: {s: {by_exception: {json.JSONDecodeEror: fail}}}",
            "g.yaml:1:29: stages.s.by_exception.json.JSONDecodeEror: Unknown exc",
        ),
    ],
)
def test_unknown_name(text: str, sentence: str) -> None:
    """An unknown handler, sink or exception is an error with its place and the nearest name."""
    with pytest.raises(UnknownNameError) as caught:
        resolved(text)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("nope.Missing", "'nope.Missing' cannot be imported: there is no module 'nope'."),
        ("os.path.join", "'os.path.join' is no exception class."),
        ("builtins.int", "'builtins.int' is no exception class."),
        ("int", "'int' is no exception class."),
        ("tests.unit.config.broken.Missing", "ZeroDivisionError: division by zero."),
    ],
)
def test_no_exception(name: str, sentence: str) -> None:
    """What cannot be imported, or is no exception, is said at once."""
    with pytest.raises(InvalidSettingError) as caught:
        resolved(f"defaults: {{classify: {{transient: [{name}]}}}}")
    assert sentence in str(caught.value)
    assert str(caught.value).startswith("g.yaml:1:35: defaults.classify.transient[0]: ")


class Outer:
    """Holds an exception."""

    class Inner(Exception):  # noqa: N818
        """A nested exception."""


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("ValueError", "ValueError"),
        ("builtins.ValueError", "ValueError"),
        ("IOError", "OSError"),
        ("json.JSONDecodeError", "json.decoder.JSONDecodeError"),
        (f"{__name__}.Outer.Inner", f"{__name__}.Outer.Inner"),
    ],
)
def test_exception_by_its_own_name(name: str, known: str) -> None:
    """However the settings name a class, the policy has the name that failures carry."""
    found = resolved(f"stages: {{s: {{by_exception: {{{name}: fail}}}}}}")
    assert found.by_exception == ((known, FailHandler()),)


def test_all_unknown_names_at_once() -> None:
    """Several problems of one stage are one error, one a line."""
    text = "stages: {s: {handler: a, on_fatal: b, sink: c, by_exception: {D: fail}}}"
    with pytest.raises(InvalidSettingError) as caught:
        resolved(text)
    assert len(str(caught.value).splitlines()) == 4


def test_default_sink() -> None:
    """Without sinks there is one: files in ./dead-letters."""
    assert sinks(Settings(), MEMBERS) == {"default": FileSink(path="dead-letters")}


def test_sinks() -> None:
    """Each sink has its options, dialect names are values, and `default` is always there."""
    text = """
sinks:
  topic: {type: kafka, bootstrap_servers: "b:1", topic: dead, overflow: files}
  files: {type: file, path: letters}
  tape: {type: tape, dialect: native}
"""
    found = sinks(loads(text), MEMBERS)
    assert set(found) == {"topic", "files", "tape", "default"}
    topic = found["topic"]
    assert isinstance(topic, KafkaSink)
    assert (topic.topic, topic.overflow, topic.dialect) == ("dead", "files", NativeDialect())
    assert found["files"] == FileSink(path="letters")
    assert found["tape"] == TapeSink()


@pytest.mark.parametrize(
    ("sink", "sentence"),
    [
        ("{type: kafca}", "sinks.a.type: Unknown sink 'kafca'. Did you mean 'kafka'?"),
        ("{type: file}", "g.yaml:1:12: sinks.a: The key 'path' is missing."),
        ("{type: tape, dialect: natve}", "sinks.a.dialect: Unknown dialect 'natve'. Did you"),
        ("{type: tape, overflow: b}", "sinks.a.overflow: Unknown sink 'b'. Known: 'a', 'default'"),
        ("{type: tape, overflow: a}", "sinks.a.overflow: An overflow must be another sink"),
        (
            "{type: kafka, bootstrap_servers: b, topic: 't t'}",
            "sinks.a.topic: 't t' is no name for a Kafka topic",
        ),
        (
            "{type: kafka, bootstrap_servers: b, topic: t, config: {bootstrap.servers: x}}",
            "g.yaml:1:86: sinks.a.config.bootstrap.servers: ",
        ),
    ],
)
def test_wrong_sink(sink: str, sentence: str) -> None:
    """A sink that cannot be made is one sentence with its place."""
    with pytest.raises(ConfigError) as caught:
        sinks(loads(f"sinks: {{a: {sink}}}", "g.yaml"), MEMBERS)
    assert sentence in str(caught.value)


def test_sink_as_value() -> None:
    """Code may give a sink itself instead of a name."""
    tape = TapeSink()
    assert sinks(Settings(sinks={"default": tape}), MEMBERS)["default"] is tape


def test_unreadable_options() -> None:
    """A member whose annotations cannot be read is the plugin's fault, and says so."""
    from dataclasses import make_dataclass

    broken = make_dataclass("Broken", [("x", "Nowhere")], frozen=True)
    from dataclasses import replace

    found = replace(MEMBERS, sinks={**MEMBERS.sinks, "broken": broken})
    with pytest.raises(PluginError, match="the options of Broken cannot be read: NameError"):
        sinks(loads("sinks: {a: {type: broken, x: 1}}"), found)


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        ("{handler: dead_letter}", False),
        ("{handler: log_and_continue}", False),
        ("{on_transient: dead_letter}", False),
        ("{by_exception: {KeyError: log_and_continue}}", False),
        ("{}", True),
        ("{handler: restart}", True),
        ("{whole_batch: skip}", True),
        ("{handler: dead_letter, whole_batch: dead_letter}", True),
        ("{handler: log_and_continue, whole_batch: skip}", True),
    ],
)
def test_whole_batch_must_be_asked_for(text: str, asked: bool) -> None:
    """A whole batch is skipped or dead-lettered only if the settings say so in so many words."""
    found = resolved(f"stages: {{s: {text}}}", category=Category.PRODUCTION)
    if asked:
        check_foreach_batch("s", found)
    else:
        with pytest.raises(ConfigError, match="must be asked for in so many words"):
            check_foreach_batch("s", found)


def test_max_calls() -> None:
    """`isolate.max_calls` bounds the search in a vectorised stage, and asks for nothing else."""
    found = resolved("stages: {s: {isolate: {max_calls: 7}}}")
    assert (found.isolate, found.max_calls) == (False, 7)
    assert (
        resolved("defaults: {isolate: {max_calls: 7}}\nstages: {s: {isolate: false}}").max_calls
        == 7
    )


@pytest.mark.parametrize("writes", ["", ", writes: append"])
def test_isolate_and_append(writes: str) -> None:
    """A function that a row may not be given to again cannot be called with parts of its batch."""
    found = resolved(f"stages: {{s: {{isolate: true{writes}}}}}", category=Category.PRODUCTION)
    with pytest.raises(ConfigError, match="has already written some rows"):
        check_foreach_batch("s", found)


@pytest.mark.parametrize("writes", ["upsert", "atomic"])
def test_isolate(writes: str) -> None:
    """P6: bad rows are dead-lettered unless it is said otherwise; a whole batch is not."""
    text = f"isolate: true, writes: {writes}"
    found = resolved(f"stages: {{s: {{{text}}}}}", category=Category.PRODUCTION)
    check_foreach_batch("s", found)
    assert found.handler == DeadLetterHandler()
    for handler in ("fail", "log_and_continue"):
        said = f"stages: {{s: {{{text}, handler: {handler}}}}}"
        check_foreach_batch("s", resolved(said, category=Category.PRODUCTION))
    said = f"stages: {{s: {{{text}, on_transient: dead_letter}}}}"
    with pytest.raises(ConfigError, match="must be asked for in so many words"):
        check_foreach_batch("s", resolved(said, category=Category.PRODUCTION))


def test_whole_batch_names_the_handler() -> None:
    """Who allows a whole batch to leave has said what is to happen with it."""
    found = resolved("stages: {s: {whole_batch: skip}}", category=Category.PRODUCTION)
    assert isinstance(found.handler, LogAndContinueHandler)


def test_crash_and_record_timeout() -> None:
    """P8, P11: both are a stage's of a flow; a batch function is not refused for the defaults."""
    settings = Settings(defaults=StageSettings(on_crash="dead_letter", record_timeout="1500ms"))

    found = policy(settings, "price", Category.PROCESSING, MEMBERS)
    batch = policy(settings, "store", Category.PRODUCTION, MEMBERS)

    assert (found.on_crash, found.record_timeout) == (DeadLetterHandler(), 1.5)
    assert policy(Settings(), "price", Category.PROCESSING, MEMBERS).record_timeout is None
    check_foreach_batch("store", batch)
