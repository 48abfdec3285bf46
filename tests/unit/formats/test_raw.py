"""Raw: the bytes as they are."""

from sparkguard.formats.base import Format
from sparkguard.formats.raw import Raw


def test_gives_the_same_bytes() -> None:
    """Nothing is copied, nothing fails."""
    value = b"\xff\x00" * 1000
    assert Raw().decoder()(value) is value
    assert isinstance(Raw(), Format)
    assert Raw().type is bytes
