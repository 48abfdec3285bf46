"""What a task counts of its failures."""

from dataclasses import replace

from sparkguard.core.shape import Kind, Shape
from sparkguard.executor.plan import Layout, Plan
from sparkguard.executor.tally import Tally
from sparkguard.testing import sample_letters
from tests.flow.made import ManualTask


def test_more_kinds_than_are_kept() -> None:
    """Of the 21st kind nothing is kept; so one more of it is only counted, and not described."""
    shape = Shape(kind=Kind.LONG)
    plan = Plan(app="a", flow="f", use="u", steps=(), layout=Layout(), shape=shape, sinks={})
    tally, model = Tally(plan, ManualTask()), sample_letters()[0].failure
    kinds = [replace(model, fingerprint=f"{number}") for number in range(21)]
    assert [tally.failed(kind) for kind in kinds] == [1] * 20 + [0]
    assert tally.failed_again(kinds[20])
    assert tally.failed_again(kinds[0])
    assert [top.count for top in tally.entry().top] == [2] + [1] * 19
