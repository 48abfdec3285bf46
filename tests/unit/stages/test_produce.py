"""produce: what it takes, and what it refuses when it is declared."""

import pickle
from typing import Any

import pytest

import sparkguard as sg
from sparkguard.core.outgoing import Outgoing, Part


def place(row: dict[str, Any]) -> str:
    """A topic by the row."""
    return f"orders.{row['country']}"


stage = sg.produce(name="out", topic=place, key="id", value=sg.Json(), headers={"v": b"1"})


def test_parts() -> None:
    """Columns, formats, constants and functions, each in its place."""
    assert stage.outgoing == Outgoing(
        topic=Part(function=place),
        key=Part(column="id"),
        value=Part(format=sg.Json()),
        headers=(("v", Part(constant=b"1")),),
    )
    assert stage.outgoing.columns() == ["id"]
    assert stage.outgoing.fixed_topic is None
    assert stage.category is sg.Category.PRODUCTION


def test_travels() -> None:
    """A stage that no module holds comes back with all that it had."""
    made = sg.produce(name="x", topic="t", value=("v", sg.Text()), producer={"linger.ms": 1})
    back = pickle.loads(pickle.dumps(made))
    assert back == made
    assert back.producer == {"linger.ms": 1}


def test_secrets_are_not_shown() -> None:
    """P18: the producer's settings may hold a password."""
    made = sg.produce(name="x", topic="t", value="v", producer={"sasl.password": "hush"})
    assert "hush" not in repr(made)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({}, "either topic="),
        ({"topic": "t", "topic_column": "c"}, "either topic="),
        ({"topic": 3}, "not int"),
        ({"topic": "t", "value": 3}, "value takes a column's name"),
        ({"topic": "t", "key": ("a", "b", "c")}, "key takes a column's name"),
        ({"topic": "t", "key": ("a", object())}, "the format object only reads"),
        ({"topic": "t", "headers": ["a"]}, "headers= takes a mapping"),
        ({"topic": "t", "headers": {"a": 1}}, r"headers\['a'\] takes"),
        ({"topic": "t", "producer": {"acks": 1}}, "must be 'all'"),
        ({"topic": "t", "producer": {"transactional.id": "x"}}, "transactions"),
        ({"topic": "t", "name": ""}, "no name"),
    ],
)
def test_refused(given: dict[str, Any], sentence: str) -> None:
    """What cannot be is said when the stage is declared."""
    with pytest.raises(sg.StageError, match=sentence):
        sg.produce(**{"name": "out", "value": "v", **given})


def test_only_reads() -> None:
    """A format that cannot write is no format for a message."""

    class Reads:
        def decoder(self) -> Any:
            return bytes

    with pytest.raises(sg.StageError, match="the format Reads only reads"):
        sg.produce(name="out", topic="t", value=Reads())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("made", "sentence"),
    [
        (sg.produce(name="out", topic="t", value="v"), "bootstrap.servers"),
        (
            sg.produce(name="out", topic="a b", value="v", producer={"bootstrap.servers": "x:1"}),
            "no name for a Kafka topic",
        ),
        (sg.map(place), "made by sg.produce, not map"),
    ],
)
def test_refused_by_the_guard(made: Any, sentence: str) -> None:
    """What a guard knows is said before there is a frame."""
    with pytest.raises(sg.StageError, match=sentence):
        sg.Guard().produce(made)


def test_settings_of_the_producer() -> None:
    """The settings' producer goes over the stage's, and may not lose records either."""
    settings = sg.Settings(stages={"out": {"producer": {"acks": "1"}}})
    with pytest.raises(sg.StageError, match="must be 'all'"):
        sg.Guard(settings).produce(
            sg.produce(name="out", topic="t", value="v", producer={"bootstrap.servers": "x:1"})
        )
    assert "hush" not in repr(sg.Settings(stages={"out": {"producer": {"sasl.password": "hush"}}}))


def test_no_record_stage() -> None:
    """A produce is not part of a flow, and shares no flow's name."""
    with pytest.raises(sg.StageError, match="a produce is no record stage"):
        sg.Guard().flow(stage, name="orders")
    guard = sg.Guard()
    guard.flow(sg.map(place), name="out")
    with pytest.raises(sg.StageError, match="another flow named 'out'"):
        guard.produce(stage)


def test_settings_in_an_old_place() -> None:
    """P2: what librdkafka takes for each topic apart could take acknowledgements away."""
    with pytest.raises(sg.StageError, match="an old place"):
        sg.produce(name="o", topic="t", value="v", producer={"default.topic.config": {"acks": 0}})
