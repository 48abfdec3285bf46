"""The window over which a stage's failures are judged."""

import pytest

from sparkguard.core.budget import Window
from sparkguard.core.policy import Budget


def window(*parts: tuple[int, int], max_ratio: float = 0.1, size: int = 1000) -> Window:
    """A window that has seen the parts."""
    made = Window(Budget(max_ratio=max_ratio, window=size))
    for entered, failed in parts:
        made.add(entered, failed)
    return made


@pytest.mark.parametrize(
    ("parts", "exceeded"),
    [
        ((), False),
        (((1, 1),), False),
        (((100, 100),), False),
        (((101, 101),), True),
        (((1000, 100),), False),
        (((1000, 101),), True),
        (((10_000, 1_000),), False),
        (((10_000, 1_001),), True),
        (((500, 50), (500, 50)), False),
        (((500, 50), (500, 51)), True),
    ],
)
def test_ratio(parts: tuple[tuple[int, int], ...], exceeded: bool) -> None:
    """P5: strictly more than 10 % of 1,000; earlier only when the window cannot save it."""
    assert window(*parts).exceeded() is exceeded


def test_spans_batches() -> None:
    """P5: small batches are judged together; what is old enough is forgotten."""
    made = window(*[(100, 5)] * 50)
    assert made.entered == 1000
    assert not made.exceeded()
    for _ in range(4):
        made.add(100, 20)
    assert made.failed == 6 * 5 + 4 * 20
    assert made.exceeded()
    for _ in range(10):
        made.add(100, 0)
    assert (made.entered, made.failed) == (1000, 0)


def test_big_good_batch_does_not_hide_an_outage() -> None:
    """P5: once a thousand records came behind it, a million good ones count no more."""
    made = window((1_000_000, 0), (999, 999))
    assert not made.exceeded()
    made.add(1, 1)
    assert made.exceeded()


def test_one_record_at_a_time() -> None:
    """P5: added one by one, it holds the window and no more."""
    made = window(*[(1, 0)] * 5000, size=100)
    assert made.entered == 100
    for _ in range(10):
        made.add(1, 1)
    assert not made.exceeded()
    made.add(1, 1)
    assert made.exceeded()


def test_no_tolerance_and_all_tolerance() -> None:
    """0 stops at the first failure, 1 never stops."""
    assert window((1, 1), max_ratio=0).exceeded()
    assert not window((5000, 0), max_ratio=0).exceeded()
    assert not window((5000, 5000), max_ratio=1).exceeded()
    # Elements of a partial stage: more failures than records.
    assert not window((1000, 3000), max_ratio=1).exceeded()


@pytest.mark.parametrize("failed", range(101))
def test_strictly_more(failed: int) -> None:
    """A ratio that is met exactly is not exceeded, whatever binary fractions do to it."""
    assert not window((100, failed), max_ratio=failed / 100, size=100).exceeded()
    assert window((100, failed), max_ratio=failed / 100 - 0.001, size=100).exceeded()


def test_nothing() -> None:
    """An empty batch changes nothing."""
    made = window((0, 0))
    assert (made.entered, made.failed, made.exceeded()) == (0, 0, False)
    made.add(10, 1)
    assert (made.entered, made.failed) == (10, 1)
    assert not window((1, 1), size=0, max_ratio=1).exceeded()


def test_sentence() -> None:
    """It says the stage, the numbers and the budget."""
    assert window((1500, 300)).sentence("price") == (
        "Stage 'price' failed 300 of its last 1,500 records (20.00%); its budget is 0.1 of 1,000."
    )
