"""Fixtures of the driver's room."""

from pathlib import Path

import pytest

from tests.unit.driver.desks import Office


@pytest.fixture
def office(tmp_path: Path) -> Office:
    """A state, a stop, a clock and watchers of its own."""
    return Office(tmp_path)
