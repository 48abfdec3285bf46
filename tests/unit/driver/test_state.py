from pathlib import Path

import pytest

from sparkguard.driver.state import State
from sparkguard.errors import ConfigError, SparkguardError


def test_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a path the state is below the working directory, by the app's name."""
    monkeypatch.chdir(tmp_path)
    assert State.at(None, "orders").path == str(tmp_path / "state" / "orders")
    assert State.at("/elsewhere", "orders").path == "/elsewhere"


def test_documents(tmp_path: Path) -> None:
    """Documents are replaced whole and listed by folder, without what is not finished."""
    state = State(str(tmp_path))
    assert state.load("ledger/a") is None
    assert state.names("ledger") == []
    state.store("ledger/b", {"n": 1})
    state.store("ledger/a", {"n": 1})
    state.store("ledger/a", {"n": 2})
    (tmp_path / "ledger" / "_tmp-1234-a.json.part").write_text("{")
    assert state.load("ledger/a") == {"n": 2}
    assert state.names("ledger") == ["ledger/a", "ledger/b"]


def test_a_broken_document(tmp_path: Path) -> None:
    """What is no JSON is named, with what to do about it."""
    state = State(str(tmp_path))
    state.store("ledger/a", {})
    (tmp_path / "ledger" / "a.json").write_text("{")
    with pytest.raises(SparkguardError, match=r"'/.*/ledger/a\.json' is no JSON; move it away"):
        state.load("ledger/a")


def test_marker(tmp_path: Path) -> None:
    """The stop marker is set and cleared, from anywhere, as often as one likes."""
    state = State(str(tmp_path))
    state.clear_stop()
    for _ in range(2):
        State(str(tmp_path)).request_stop()
        assert state.stop_requested()
    assert Path(state.stop_marker).exists()
    state.clear_stop()
    assert not state.stop_requested()


def test_check(tmp_path: Path) -> None:
    """A state that can be written is left as it was; one that cannot is named."""
    state = State(str(tmp_path / "state"))
    state.check()
    assert list((tmp_path / "state").iterdir()) == []
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ConfigError, match=r"'/.*/file/state' cannot be written"):
        State(str(tmp_path / "file" / "state")).check()


def test_in_memory() -> None:
    """A state on a filesystem that is no local one works alike."""
    state = State("memory://sparkguard/state-test")
    state.check()
    state.store("restarts/a", {"n": 1})
    assert state.load("restarts/a") == {"n": 1}
    assert state.names("restarts") == ["restarts/a"]
    state.request_stop()
    assert state.stop_requested()
    state.clear_stop()
    assert not state.stop_requested()
