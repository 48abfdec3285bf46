"""One word everywhere: the page, the class and the file."""

import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparkguard.config.model import Settings, StageSettings
from tests.docs.conftest import PAGES, ROOT

#: Word -> the file below `sparkguard/` that is named so, and the class in it.
WORDS = {
    "record": ("core/record", "Record"),
    "stage": ("stages/base", "Stage"),
    "flow": ("flow", "Flow"),
    "failure": ("core/failure", "Failure"),
    "category": ("core/failure", "Category"),
    "cause": ("core/failure", "Cause"),
    "policy": ("core/policy", "Policy"),
    "handler": ("handlers/base", "Handler"),
    "outcome": ("core/outcome", "Outcome"),
    "letter": ("core/letter", "Letter"),
    "sink": ("sinks/base", "Sink"),
    "ledger": ("core/ledger", "Account"),
    "supervisor": ("driver/supervisor", "Supervisor"),
    "state": ("driver/state", "State"),
}


@pytest.mark.parametrize("word", WORDS)
def test_word(word: str) -> None:
    """A word is a page, a class and a file."""
    file, name = WORDS[word]
    module = importlib.import_module(f"sparkguard.{file.replace('/', '.')}")
    assert hasattr(module, name)
    page = (ROOT / "docs" / f"{word}.md").read_text()
    assert page.startswith(f"# {word.capitalize()}\n")
    concepts = (ROOT / "docs/concepts.md").read_text()
    assert f"({word}.md)" in concepts


def test_keys() -> None:
    """What can be set is called by its word in YAML."""
    assert {"state", "sinks", "stages"} <= Settings.model_fields.keys()
    assert {"handler", "sink", "classify"} <= StageSettings.model_fields.keys()


@pytest.mark.parametrize("page", [pytest.param(page, id=page.name) for page in PAGES])
def test_links(page: Path) -> None:
    """A link within the project leads to a file that is there, and to a heading that it has."""
    for target, anchor in _links(page):
        assert target.exists(), f"{page.name} links to {target}"
        if anchor:
            assert anchor in _anchors(target), f"{page.name} links to {target.name}#{anchor}"


def _links(page: Path) -> Iterator[tuple[Path, str]]:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if "://" not in link:
            path, _, anchor = link.partition("#")
            yield (page.parent / path if path else page), anchor


def _anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
