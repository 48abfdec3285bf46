"""Environment variables in settings."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkguard.config.interpolate import interpolate

VARIABLES = {"HOST": "broker", "PORT": "9092", "EMPTY": "", "TRICK": "${HOST}: {a: 1}"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("${HOST}:${PORT}", "broker:9092"),
        ("${NOPE:-localhost}", "localhost"),
        ("${NOPE:-}", ""),
        ("${EMPTY:-full}", "full"),
        ("${EMPTY}", ""),
        ("${NOPE:-a:-b}", "a:-b"),
        ("$${HOST}", "${HOST}"),
        ("$$", "$"),
        ("$HOST costs 5$", "$HOST costs 5$"),
        ("${TRICK}", "${HOST}: {a: 1}"),
    ],
)
def test_interpolate(text: str, expected: str) -> None:
    """Variables are put in once; what they hold is not looked at again."""
    assert interpolate(text, VARIABLES) == expected


@pytest.mark.parametrize("text", ["${}", "${1X}", "${A-b}", "${HOST", "${A B}", "a ${"])
def test_wrong_spelling(text: str) -> None:
    """A half-written variable is an error, not text."""
    with pytest.raises(ValueError, match="is no variable"):
        interpolate(text, VARIABLES)


def test_missing_variable() -> None:
    """A variable that is not set is named, with the way out."""
    with pytest.raises(ValueError, match=r"'SECRET' is not set.*\$\{SECRET:-default\}"):
        interpolate("${SECRET}", {})


@given(st.text())
def test_dollars_survive(text: str) -> None:
    """Any text can be written: doubling its dollars gives it back."""
    assert interpolate(text.replace("$", "$$"), {}) == text
