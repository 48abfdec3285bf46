"""Spark Connect without a server: whose batch it is, and what is refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sparkguard.core.failure import Category
from sparkguard.driver import connect
from sparkguard.driver.attempts import BatchStage
from sparkguard.errors import UnsupportedError
from sparkguard.executor.task import _tagged, tag
from sparkguard.sinks.memory import MemorySink
from tests.unit.driver.desks import policy


def query(name: str, number: int = 1) -> Any:
    """A query as the server lists it."""
    return SimpleNamespace(name=name, id=f"q{number}", runId=f"r{number}")


class Session:
    """As much of a session as a batch function needs."""

    def __init__(self, *active: Any) -> None:
        self.streams = SimpleNamespace(active=list(active))
        self.tags = {"the user's"}
        self.addTag = self.tags.add
        self.removeTag = self.tags.remove

    def getTags(self) -> set[str]:  # noqa: N802 - the name is Spark's
        """The tags themselves, as Spark gives them."""
        return self.tags


def batch(*active: Any) -> Any:
    """A batch while these queries run."""
    return SimpleNamespace(sparkSession=Session(*active))


def test_the_only_query() -> None:
    """The one query that runs must be the batch's, whatever its name."""
    only = query("any")
    assert connect.query_of(batch(only), "store") is only
    assert connect.query_of(batch(), "store") is None


def test_the_query_by_name() -> None:
    """Among several it is the one that is named like the stage."""
    mine = query("store")
    assert connect.query_of(batch(query("other"), mine), "store") is mine


@pytest.mark.parametrize("active", [("", "other"), ("store", "store"), ("store", "")])
def test_no_telling(active: tuple[str, ...]) -> None:
    """P4: where the names do not tell, counts could go to another query: refused."""
    with pytest.raises(UnsupportedError, match=r'and 2 run .* \.queryName\("store"\)'):
        connect.query_of(batch(*map(query, active)), "store")


@pytest.mark.parametrize("name", ["", "a name, with / and =", "größe"])
def test_a_tag_travels(name: str) -> None:
    """What a batch function says of a try is what the tasks hear, among Spark's own tags."""
    frame = batch()
    connect.mark(frame, query(name), 7, 0)
    connect.mark(frame, query(name), 7, 1)
    (own,) = frame.sparkSession.tags - {"the user's"}
    assert own == tag(query(name), 7, 1)
    assert "," not in own
    tags = f"SparkConnect_OperationTag_User_u,SparkConnect_SessionTag_User_u_Session_s_Tag_{own},x"
    assert _tagged(tags) == ("q1", "r1/1", "7", name or None)
    assert _tagged(None) is None


def stage(**more: Any) -> BatchStage:
    """A batch stage whose letters go to the sink `default`."""
    return BatchStage(
        app="app",
        name="store",
        category=Category.PROCESSING,
        policy=policy(**more),
        function=print,
        sinks={"default": MemorySink()},
    )


def test_refused() -> None:
    """What a batch function cannot do is said before it runs."""
    with pytest.raises(UnsupportedError, match=r"Stage 'store': 'isolate' .* Set it to false"):
        connect.refuse(stage(isolate=True))
    with pytest.raises(UnsupportedError, match=r"'default' .* of type file or kafka"):
        connect.refuse(stage())
