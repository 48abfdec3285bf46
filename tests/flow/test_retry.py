"""Retries in a worker, by a clock that moves only when the task waits."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

import sparkguard as sg
from sparkguard.core.failure import Cause
from sparkguard.core.policy import Retry
from sparkguard.executor.task import StoppedError
from sparkguard.handlers.dead_letter import DeadLetterHandler
from tests.flow.made import ListSink, ManualTask, Ran, plan, policy, records, run


@dataclass
class Outage:
    """A service that answers a number of calls with an error, and counts the calls.

    Attributes:
        errors: what to raise, call by call; then it works.
        seconds: how long each call takes, by the task's clock.
    """

    task: ManualTask
    errors: list[BaseException | None] = field(default_factory=list)
    seconds: float = 0.0
    calls: list[bytes] = field(default_factory=list)

    def ask(self, value: bytes) -> bytes:
        self.calls.append(value)
        self.task.clock[0] += self.seconds
        error = self.errors.pop(0) if self.errors else None
        if error is not None:
            raise error
        return value


def go(
    outage: Outage, values: Sequence[bytes | None], *batch_sizes: int, **policy_changes: Any
) -> tuple[Ran, ListSink]:
    """Run the values through a map that asks the service."""
    sink = ListSink()
    stages = sg.deserialize(sg.Raw(), name="decode"), sg.map(name="ask")(_bytes(outage.ask))
    chosen = policy(**policy_changes)
    made = plan(*stages, policies={"ask": chosen}, sinks={"default": sink})
    sizes, at, batches = batch_sizes or (len(values),), 0, []
    for size in sizes:
        batches.append(records(values[at : at + size], first=at))
        at += size
    return run(made, *batches, task=outage.task), sink


def _bytes(function: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
    def ask(value: bytes) -> bytes:
        return function(value)

    return ask


@pytest.fixture(autouse=True)
def _longest_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The jitter draws its bound, so that waits are numbers."""
    monkeypatch.setattr(random, "random", lambda: 1.0)


def test_a_transient_cause_is_tried_again() -> None:
    """P7: waits double up to the bound; the record goes on in its place, and is no letter."""
    outage = Outage(ManualTask(), [None, *(TimeoutError() for _ in range(4))])

    ran, _ = go(outage, [b"a", b"b", b"c"], retry=Retry(initial=1, multiplier=2, maximum=3))

    assert ran.rows == [b"a", b"b", b"c"]
    assert outage.calls == [b"a", b"b", b"b", b"b", b"b", b"b", b"c"]
    assert outage.task.waits == [1, 2, 3, 3]
    assert not ran.letters
    counts = ran.account.stages["ask"]
    assert (counts["failed_attempts"], counts["retries"]) == (4, 4)
    assert ran.account.balanced


def test_poison_is_never_tried_again() -> None:
    """P7: first the classifier; a poison record costs one call."""
    outage = Outage(ManualTask(), [ValueError()])

    ran, _ = go(outage, [b"a", b"b"])

    assert outage.calls == [b"a", b"b"]
    assert [letter.failure.attempts for letter in ran.letters] == [1]
    assert not outage.task.waits


def test_another_cause_ends_the_retries() -> None:
    """P7: the latest exception is judged, and its letter tells of all attempts."""
    outage = Outage(ManualTask(), [TimeoutError(), TimeoutError(), ValueError("bad after all")])

    ran, _ = go(outage, [b"a"])

    (letter,) = ran.letters
    assert (letter.failure.attempts, letter.failure.cause) == (3, Cause.POISON)
    assert letter.failure.message == "bad after all"


def test_used_up_retries_restart_by_default() -> None:
    """P9: an outage is nobody's dead letter; the task fails and asks for a restart."""
    outage = Outage(ManualTask(), [TimeoutError() for _ in range(9)])

    with pytest.raises(sg.StageFailedError) as raised:
        go(outage, [b"a"], retry=Retry(max_attempts=3))

    assert len(outage.calls) == 3
    assert raised.value.action == "restart"
    assert raised.value.facts["cause"] == "transient"
    assert raised.value.facts["attempts"] == 3
    assert raised.value.facts["offset"] == 0


def test_the_task_timeout_bounds_attempts_and_waits() -> None:
    """P8: at the bound there is one last attempt; then routing goes on with timed_out set."""
    outage = Outage(ManualTask(), [TimeoutError() for _ in range(99)], seconds=2)

    ran, _ = go(
        outage,
        [b"a"],
        retry=Retry(initial=10, multiplier=1, maximum=10),
        task_timeout=25,
        on_transient=DeadLetterHandler(),
    )

    (letter,) = ran.letters
    assert letter.failure.timed_out
    # First failure at 0; tries at 10 and 22; what is left of 25 is 1: one more.
    assert outage.task.waits == [10, 10, 1]
    assert letter.failure.attempts == 4


@pytest.mark.parametrize(
    ("errors", "sizes"),
    [
        # Both recover: that is progress.
        ([TimeoutError(), None, TimeoutError(), None, None, None], (4,)),
        # One is bad; two get through; the last one recovers, in the same batch or the next.
        ([ValueError(), None, None, TimeoutError(), None], (4,)),
        ([ValueError(), None, None, TimeoutError(), None], (3, 1)),
    ],
)
def test_slow_successes_do_not_use_up_the_timeout(
    errors: list[BaseException | None], sizes: tuple[int, ...]
) -> None:
    """P8: progress clears the clock, in one batch and from one batch to the next."""
    outage = Outage(ManualTask(), [*errors], seconds=60)

    ran, _ = go(outage, [b"a", b"b", b"c", b"d"], *sizes, task_timeout=100)

    counts = ran.account.stages["ask"]
    assert counts["retries"] == sum(isinstance(error, TimeoutError) for error in errors)
    assert len(ran.letters) == sum(isinstance(error, ValueError) for error in errors)
    assert len(ran.rows) + len(ran.letters) == 4


def test_an_outage_uses_the_timeout_once() -> None:
    """P8: without progress in between, the next record does not get a time of its own."""
    outage = Outage(ManualTask(), [TimeoutError() for _ in range(99)], seconds=1)

    ran, _ = go(
        outage,
        [b"a", b"b", b"c"],
        2,
        1,
        retry=Retry(initial=10, multiplier=1),
        task_timeout=30,
        on_transient=DeadLetterHandler(),
    )

    assert len(ran.letters) == 3
    assert [letter.failure.attempts for letter in ran.letters] == [4, 1, 1]
    assert all(letter.failure.timed_out for letter in ran.letters)


def test_the_second_attempt_of_a_task_tries_once() -> None:
    """P7: Spark's retries do not multiply ours."""
    outage = Outage(ManualTask(attempt=1), [TimeoutError(), None])

    with pytest.raises(sg.StageFailedError) as raised:
        go(outage, [b"a"])

    assert outage.calls == [b"a"]
    assert raised.value.action == "restart"


def test_a_service_may_say_when_to_come_back() -> None:
    """P7: a longer wait that the other side asks for is kept, within the task timeout."""

    class BusyError(ConnectionError):
        retry_after = 7

    outage = Outage(ManualTask(), [BusyError(), BusyError(), BusyError()])

    with pytest.raises(sg.StageFailedError):
        go(outage, [b"a"], retry=Retry(max_attempts=3), task_timeout=10)

    assert outage.task.waits == [7, 3]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoppedTask(ManualTask):
    """A task that finds its query stopped when it waits."""

    def wait(self, seconds: float) -> None:
        raise StoppedError("The stop marker is set.")


def test_a_stop_during_a_wait_delivers_nothing() -> None:
    """P7: the letters written before the stop are not stored, and nothing is counted."""
    outage = Outage(StoppedTask(), [ValueError(), TimeoutError()])
    sink = ListSink()
    decode = sg.deserialize(sg.Raw(), name="decode")
    ask = sg.map(name="ask")(_bytes(outage.ask))
    made = plan(decode, ask, sinks={"default": sink})

    with pytest.raises(sg.StageFailedError, match="stopped while it waited") as raised:
        run(made, records([b"a", b"b"]), task=outage.task)

    assert raised.value.action == "stop"
    assert len(sink.written) == 1
    assert not sink.stored


def partial_split(errors: list[BaseException]) -> Any:
    """A flat_map whose second element meets the errors, one a call."""

    @sg.flat_map(partial=True)
    def split(value: bytes) -> list[int]:
        def made() -> Any:
            yield 1
            if errors:
                raise errors.pop(0)
            yield 2

        return made()  # type: ignore[no-any-return]

    return split


def test_an_element_is_tried_again_with_its_record() -> None:
    """P7: a partial flat_map that recovers gives every element once."""
    errors: list[BaseException] = [TimeoutError(), TimeoutError()]
    task = ManualTask()
    made = plan(
        sg.deserialize(sg.Raw(), name="decode"),
        partial_split(errors),
        policies={"split": policy()},
    )

    ran = run(made, records([b"a", b"b"]), task=task)

    assert ran.rows == [1, 2, 1, 2]
    assert ran.account.stages["split"]["retries"] == 2
    assert ran.account.balanced


def test_settings_may_say_what_is_transient() -> None:
    """P7: `classify` of the settings is asked before the built-in table."""
    outage = Outage(ManualTask(), [KeyError(), None])

    ran, _ = go(outage, [b"a"], classify=(("KeyError", Cause.TRANSIENT),))

    assert ran.rows == [b"a"]
    assert not ran.letters
