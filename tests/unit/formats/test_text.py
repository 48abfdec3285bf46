"""Text: one encoding, nothing replaced."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkguard.errors import StageError
from sparkguard.formats.base import Format
from sparkguard.formats.text import Text


@given(st.text())
def test_reads_what_was_written(text: str) -> None:
    """Text comes back as it was encoded."""
    assert Text().decoder()(text.encode()) == text


def test_never_replaces() -> None:
    """Bytes that are not of the encoding are a failure."""
    with pytest.raises(UnicodeDecodeError):
        Text().decoder()(b"\xff")
    assert Text("latin-1").decoder()(b"\xff") == "ÿ"
    assert Text().decoder()(b"") == ""


@pytest.mark.parametrize("encoding", ["utf-9", "base64"])
def test_refuses_unknown_encodings(encoding: str) -> None:
    """An encoding that Python does not know is refused at once."""
    with pytest.raises(StageError, match="no text encoding"):
        Text(encoding)


def test_is_a_format() -> None:
    """It says that it gives text."""
    assert isinstance(Text(), Format)
    assert Text().type is str
