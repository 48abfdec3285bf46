"""The server: where it listens, and what becomes of a wrong address."""

from collections.abc import Iterator
from urllib.request import urlopen

import pytest

import sparkguard_prometheus
from sparkguard.core.watch import QueryStarted
from sparkguard.plugins import load, notify
from sparkguard_prometheus import server


@pytest.fixture(autouse=True)
def not_started() -> Iterator[None]:
    """Each test finds a process without a server."""
    server._state.clear()
    yield
    server._state.clear()


def test_off_when_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the variable nothing listens."""
    monkeypatch.delenv(server.VARIABLE, raising=False)
    server.ensure_started()
    assert sparkguard_prometheus.address() is None


def test_free_port(monkeypatch: pytest.MonkeyPatch) -> None:
    """Port 0 takes a free one, and the first event starts the server."""
    monkeypatch.setenv(server.VARIABLE, "127.0.0.1:0")
    notify(load([("prometheus", sparkguard_prometheus)]), QueryStarted(app="port"))
    found = sparkguard_prometheus.address()
    assert found is not None
    assert not found.endswith(":0")
    with urlopen(f"http://{found}/metrics", timeout=10) as answer:
        assert b"sparkguard_records_in" in answer.read()


@pytest.mark.parametrize("wrong", ["9108", "localhost", "localhost:port", "localhost:99999", ":1"])
def test_wrong_address(monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    """A wrong address is a sentence, once; the next event does not fail."""
    monkeypatch.setenv(server.VARIABLE, wrong)
    with pytest.raises(ValueError, match="must be host:port"):
        server.ensure_started()
    server.ensure_started()
    assert sparkguard_prometheus.address() is None
