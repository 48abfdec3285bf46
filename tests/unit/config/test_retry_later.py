"""The settings of delayed retry: a handler, and a short way to name it."""

from datetime import timedelta
from typing import Any

import pytest

from sparkguard.config.model import Settings
from sparkguard.config.resolve import policy
from sparkguard.config.schema import schema
from sparkguard.core.failure import Category
from sparkguard.core.policy import Policy
from sparkguard.errors import ConfigError
from sparkguard.handlers.dead_letter import DeadLetterHandler
from sparkguard.handlers.fail import FailHandler
from sparkguard.handlers.restart import RestartHandler
from sparkguard.handlers.retry_later import RetryLaterHandler
from sparkguard.plugins import load

RETRY = {"type": "kafka", "bootstrap_servers": "localhost:9092", "topic": "orders.retry"}
LATER = {"delays": ["1m", "10m", "1h30m"], "then": "fail"}
DELAYS = (timedelta(minutes=1), timedelta(minutes=10), timedelta(minutes=90))


def resolved(
    stage: dict[str, Any], category: Category = Category.PROCESSING, **more: Any
) -> Policy:
    """The policy of one stage, with a retry topic and a redrive topic."""
    known: dict[str, Any] = {
        "sinks": {"retry": RETRY},
        "redrive": {"topic": "orders.redrive"},
        "stages": {"price": stage},
        **more,
    }
    return policy(Settings(**known), "price", category, load(()))


def test_the_short_way_names_the_handler_twice() -> None:
    """`retry_later` of a stage decides about poison and about outages."""
    made = resolved({"retry_later": LATER})
    assert made.handler == made.on_transient == RetryLaterHandler(delays=DELAYS, then="fail")
    assert (made.on_programming, made.on_fatal) == (FailHandler(), FailHandler())
    assert "retry" in made.sinks()
    assert not made.goes_on


def test_what_the_stage_names_itself_stands() -> None:
    """A handler of its own comes first; a stage comes before the defaults, whichever way."""
    own = resolved({"retry_later": LATER, "handler": "dead_letter"})
    assert own.handler == DeadLetterHandler()
    assert own.on_transient == RetryLaterHandler(delays=DELAYS, then="fail")
    below = resolved({"on_transient": "restart"}, defaults={"retry_later": LATER})
    assert below.on_transient == RestartHandler()
    assert isinstance(below.handler, RetryLaterHandler)
    above = resolved({"retry_later": LATER}, defaults={"handler": "fail"})
    assert isinstance(above.handler, RetryLaterHandler)


def test_the_long_ways() -> None:
    """It is a handler like others: with its type, and by exception."""
    long = {"type": "retry_later", "delays": ["1m"], "sink": "other"}
    made = resolved({"by_exception": {"KeyError": long}}, sinks={"other": RETRY})
    ((_, handler),) = made.by_exception
    assert handler == RetryLaterHandler(delays=DELAYS[:1], sink="other")


def test_of_the_defaults_it_is_for_flows() -> None:
    """A foreach_batch has no record to put off; what `defaults` say is about the flows."""
    made = resolved({}, Category.PRODUCTION, defaults={"retry_later": LATER})
    assert (made.handler, made.on_transient) == (FailHandler(), RestartHandler())


@pytest.mark.parametrize(
    ("stage", "more", "says"),
    [
        ({"retry_later": {"delay": ["1m"]}}, {}, "Did you mean 'delays'"),
        ({"retry_later": {"delays": [60]}}, {}, "A duration needs a unit"),
        ({"retry_later": {"delays": []}}, {}, "Say when to try again"),
        ({"retry_later": {"delays": ["1m"], "then": "drop"}}, {}, "then"),
        ({"retry_later": ["1m"]}, {}, "Must be a mapping"),
        ({"retry_later": {"schedule": "datetime:datetim"}}, {}, "Did you mean 'datetime'"),
        ({"retry_later": LATER}, {"redrive": {}}, "set 'redrive: {topic: …}'"),
        ({"retry_later": LATER}, {"sinks": {"retri": RETRY}}, "Did you mean 'retri'"),
        (
            {"retry_later": LATER},
            {"sinks": {"retry": {"type": "file", "path": "x"}}},
            "the type 'kafka' and the dialect 'native'",
        ),
        (
            {"retry_later": LATER},
            {"sinks": {"retry": {**RETRY, "dialect": "spring"}}},
            "the type 'kafka' and the dialect 'native'",
        ),
        ({"retry_later": LATER}, {"redrive": {"topic": "orders.retry"}}, "must be apart"),
    ],
)
def test_wrong_settings_are_told(stage: dict[str, Any], more: dict[str, Any], says: str) -> None:
    """What would bring no record back is an error when a flow is built, and says what to write."""
    with pytest.raises(ConfigError, match=says.replace("{", r"\{")):
        resolved(stage, **more)


@pytest.mark.parametrize(
    "stage",
    [{"retry_later": LATER}, {"by_exception": {"KeyError": {"type": "retry_later", **LATER}}}],
)
def test_a_stage_of_rows_is_refused(stage: dict[str, Any]) -> None:
    """A row that cannot be written is no record of Kafka: the sentence names another way."""
    with pytest.raises(ConfigError, match="only rows"):
        resolved(stage, Category.PRODUCTION)


def test_the_schema_knows_its_options() -> None:
    """An editor completes the short way: the handler's options, without its type."""
    short = schema(load(()))["$defs"]["StageSettings"]["properties"]["retry_later"]
    assert sorted(short["properties"]) == ["delays", "schedule", "sink", "then"]
    assert short["properties"]["delays"]["items"]["type"] == "string"
