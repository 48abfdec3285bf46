"""Durations: text with a unit, never a bare number."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkguard.config.duration import checked, seconds


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("500ms", 0.5),
        ("30s", 30),
        ("5m", 300),
        ("1h", 3600),
        ("2d", 172_800),
        ("1.5s", 1.5),
        ("1h30m", 5400),
        ("0s", 0),
    ],
)
def test_seconds(text: str, expected: float) -> None:
    """Every unit means what it says."""
    assert seconds(text) == pytest.approx(expected)


@pytest.mark.parametrize("bare", [30, 1.5, "30", "1.5"])
def test_bare_number(bare: object) -> None:
    """A number without unit is refused in so many words: nobody knows whether it is seconds."""
    with pytest.raises(ValueError, match="needs a unit"):
        checked(bare)


@pytest.mark.parametrize(
    "wrong", ["", "s", "5 m", "5min", "-5s", "5S", "1m 5s", True, None, [], "5m\n"]
)
def test_no_duration(wrong: object) -> None:
    """Anything else is refused with an example of what is right."""
    with pytest.raises(ValueError, match="'500ms'"):
        checked(wrong)


@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_parts_add_up(minutes: int, milliseconds: int) -> None:
    """Several parts are their sum."""
    assert seconds(f"{minutes}m{milliseconds}ms") == pytest.approx(
        minutes * 60 + milliseconds / 1e3
    )
