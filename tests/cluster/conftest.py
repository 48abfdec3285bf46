"""No job outlives its test."""

import signal
from collections.abc import Iterator

import pytest

from tests.faults import harness


@pytest.fixture(autouse=True)
def _no_job_left() -> Iterator[None]:
    """Kill the processes of a test that failed before it saw their end."""
    yield
    while harness.STARTED:
        running = harness.STARTED.pop()
        if running.child.running:
            running.child.end(signal.SIGKILL)
