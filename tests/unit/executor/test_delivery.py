"""The delivery: what a task's letters are made of."""

from dataclasses import replace

from sparkguard.core.replay import replays, sent_back
from sparkguard.executor.delivery import Delivery
from sparkguard.executor.task import Task
from sparkguard.testing import sample_letters


def test_a_letter_knows_its_replays() -> None:
    """A record that was sent back and fails again is counted: no loop is endless."""
    delivery = Delivery("app", {}, Task())
    first = delivery.letter(sample_letters()[0].failure)
    sent = replace(sent_back(first, "run"), topic="again", partition=0, offset=3)
    second = delivery.letter(replace(first.failure, record=sent))
    assert (first.replays, second.replays) == (0, 1)
    assert replays(sent_back(second, "run")) == 2
    assert second.id != first.id
