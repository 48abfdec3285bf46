"""The settings as JSON Schema."""

import json
from typing import Any

import pytest

from sparkguard.config.model import Settings
from sparkguard.config.schema import schema
from tests.unit.config.members import members

SCHEMA = schema(members())


def choices(family: str) -> dict[str, dict[str, Any]]:
    """The objects of one family by their title."""
    return {one["title"]: one for one in SCHEMA["$defs"][family]["anyOf"] if "title" in one}


def test_draft() -> None:
    """It names its dialect, and is plain JSON."""
    assert SCHEMA["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert json.loads(json.dumps(SCHEMA)) == SCHEMA


def test_every_setting_is_described() -> None:
    """Each setting has a sentence, and nothing else is allowed."""
    assert set(SCHEMA["properties"]) == set(Settings.model_fields)
    objects = [SCHEMA, *SCHEMA["$defs"].values()]
    for one in objects:
        for name, setting in one.get("properties", {}).items():
            assert setting.get("description"), name
        if one.get("type") == "object":
            assert one["additionalProperties"] is False


def test_members_are_choices() -> None:
    """Installed handlers and sinks are listed, a plugin's too, with their options."""
    handlers, sinks = choices("HandlerSettings"), choices("SinkSettings")
    assert {"dead_letter", "fail", "log_and_continue", "restart", "retry_later", "picky"} == set(
        handlers
    )
    assert {"file", "kafka", "memory", "tape"} == set(sinks)
    assert handlers["dead_letter"]["properties"]["type"] == {"const": "dead_letter"}
    picky = handlers["picky"]
    assert picky["required"] == ["type", "limit"]
    assert picky["properties"]["ratio"] == {"type": "number", "default": 0.5}
    assert picky["properties"]["wait"]["pattern"].endswith("(ms|s|m|h|d))+$")
    known = ["connect", "kafka_streams", "native", "spring"]
    assert sinks["kafka"]["properties"]["dialect"] == {"enum": known, "default": "native"}
    assert sinks["tape"]["properties"]["dialect"] == {"enum": known}


def test_short_form() -> None:
    """A name alone is allowed where no option is required."""
    short = SCHEMA["$defs"]["HandlerSettings"]["anyOf"][0]["enum"]
    assert "dead_letter" in short
    assert "picky" not in short


@pytest.mark.parametrize("name", ["HandlerSettings", "SinkSettings", "StageSettings"])
def test_references_resolve(name: str) -> None:
    """Whatever is referred to is there."""
    assert name in SCHEMA["$defs"]
    text = json.dumps(SCHEMA)
    for part in text.split('"#/$defs/')[1:]:
        assert part.split('"')[0] in SCHEMA["$defs"]
