"""The settings page: generated, complete, and its example works."""

import importlib.util
import re
from pathlib import Path
from typing import Any

from sparkguard.config.load import loads
from sparkguard.config.model import Model, Settings
from sparkguard.config.resolve import policy, sinks
from sparkguard.core.failure import Category
from sparkguard.plugins import load

DOCS = Path(__file__).parents[3] / "docs"


def page() -> str:
    """The page as it is generated now."""
    spec = importlib.util.spec_from_file_location(
        "generate_settings", DOCS / "generate_settings.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    text = module.settings_page()
    assert isinstance(text, str)
    return text


def test_every_setting_and_member_is_there() -> None:
    """Each setting, handler and sink has its line."""
    text = page()
    models = [one for one in Model.__subclasses__() if "type" not in one.model_fields]
    assert Settings in models
    for model in models:
        for name, info in model.model_fields.items():
            assert f"| `{name}` |" in text
            assert str(info.description) in text
    for name in ("dead_letter", "fail", "log_and_continue", "restart", "file", "kafka", "memory"):
        assert f"\n### `{name}`\n" in text
    assert "bootstrap_servers" in text


def test_page_is_the_same_twice() -> None:
    """Nothing in it changes from one run to the next."""
    assert page() == page()


def test_example() -> None:
    """The YAML block on the page is a valid file whose names resolve."""
    (text,) = re.findall(r"```yaml\n(.*?)```", page(), re.DOTALL)
    settings, members = loads(text), load([])
    assert set(sinks(settings, members)) == {"default", "topic"}
    for stage in settings.stages:
        policy(settings, stage, Category.PROCESSING, members)
