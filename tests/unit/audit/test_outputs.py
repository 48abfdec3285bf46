"""How messages tell their coordinates."""

from types import SimpleNamespace
from typing import Any

import pytest

from sparkguard.audit.outputs import _told

HERE = ("orders", 3, 17)
HEADERS = [("trace", b"x"), ("topic", b"orders"), ("partition", b"3"), ("offset", b"17")]


@pytest.mark.parametrize(
    ("value", "headers", "place"),
    [
        (b"no JSON", HEADERS, HERE),
        (b'{"id": 1, "topic": "orders", "partition": 3, "offset": 17}', None, HERE),
        (b'{"_sparkguard": {"topic": "orders", "partition": 3, "offset": 17}}', [], HERE),
        (b'{"topic": "other"}', HEADERS, HERE),
        (b'{"id": 1}', [], (None, None, None)),
        (b'{"topic": 1, "partition": "a", "offset": 17}', [], (None, None, None)),
        (b"[1]", None, (None, None, None)),
        (b'{"topic": "t", "partition": 4294967296, "offset": 1}', None, (None, None, None)),
        (b'{"topic": "t", "partition": 0, "offset": 9223372036854775808}', [], (None, None, None)),
        (b'{"topic": "t", "offset": 17}', [], (None, None, None)),
        (None, None, (None, None, None)),
        (b"{}", [("topic", None), ("partition", b"3"), ("offset", b"17")], (None, None, None)),
        (b"{}", [("topic", b"t"), ("partition", b"x"), ("offset", b"17")], (None, None, None)),
    ],
)
def test_told(value: bytes | None, headers: Any, place: tuple[Any, ...]) -> None:
    """By headers, by fields of the value, by the hidden column; else not at all."""
    message = SimpleNamespace(value=lambda: value, headers=lambda: headers)
    assert _told(message) == place
