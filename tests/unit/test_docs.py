"""The generated pages say what the code says."""

import pytest

from docs.generate import PAGES, stale
from sparkguard import events
from sparkguard.core import known


@pytest.mark.parametrize("name", PAGES)
def test_page_is_fresh(name: str) -> None:
    """A page that is stale is written anew by `make docs`."""
    assert name not in stale()


def test_every_known_name_is_on_the_page() -> None:
    """The page of causes is the whole table."""
    page = PAGES["causes.md"]()
    tables = (known.BY_CLASS, known.ERRNO, known.KAFKA, known.SQLSTATE, known.AWS)
    for table in (*tables, known.CONDITIONS, known.JAVA, known.PHRASES):
        assert [name for name in table if f"`{name}`" not in page] == []
    assert [name for name in known.SQLITE if f"`SQLITE_{name}`" not in page] == []


def test_every_event_is_on_the_page() -> None:
    """Each event has a name, a sentence and its fields."""
    page = PAGES["events.md"]()
    names = [value for name, value in vars(events).items() if name.isupper()]
    assert names
    for name in names:
        (row,) = (line for line in page.splitlines() if f"`{name}`" in line)
        _, _, when, fields, _ = row.split("|")
        assert when.strip()
        assert all(field.strip().startswith("`") for field in fields.split(","))
