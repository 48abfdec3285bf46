"""The record timeout: what takes too long is interrupted, and nothing else ever is."""

import os
import queue
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pyarrow as pa
import pytest

import sparkguard as sg
from sparkguard.core.classify import classify
from sparkguard.core.failure import Cause
from sparkguard.core.policy import Policy
from sparkguard.errors import RecordTimeoutError
from sparkguard.executor.plan import Step
from sparkguard.executor.record_timeout import SIGNAL, RecordTimeout
from sparkguard.handlers.dead_letter import DeadLetterHandler
from tests.flow.made import ListSink, plan, policy, records, run

LIMIT = 0.1


class Numbered(msgspec.Struct):
    id: int


def steps(limit: float | None = LIMIT) -> tuple[Step, ...]:
    """One step with this timeout."""
    like = policy(record_timeout=limit)
    return (Step(name="price", kind="map", category=sg.Category.PROCESSING, policy=like),)


def spin() -> None:
    """Keep the interpreter busy."""
    until = time.monotonic() + 30
    while time.monotonic() < until:
        pass


def receive() -> None:
    """Wait for a peer that says nothing."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.recv(1)


@pytest.mark.parametrize(
    "hang",
    [
        spin,
        receive,
        lambda: time.sleep(30),
        lambda: threading.Event().wait(30),
        lambda: queue.Queue[int]().get(),
        lambda: subprocess.run(["sleep", "30"], check=True),
    ],
    ids=["loop", "socket", "sleep", "event", "queue", "process"],
)
def test_interrupted(hang: Callable[[], Any], capfd: pytest.CaptureFixture[str]) -> None:
    """P8: whatever it waits for, it is interrupted there, and its stack is told."""
    out: list[Any] = []
    begun = time.monotonic()
    with RecordTimeout(steps()) as timeout, pytest.raises(RecordTimeoutError) as raised:
        timeout.fill(0, out, (hang() if value == 2 else value for value in range(5)))
    assert LIMIT <= time.monotonic() - begun < 10
    assert out == [0, 1]
    assert (raised.value.stage, raised.value.seconds) == ("price", LIMIT)
    assert "Stage 'price' is at one value for 0.1 s" in capfd.readouterr().err


def test_slow_is_not_late() -> None:
    """P8: many values that each take half of the time are all there."""
    out: list[Any] = []
    with RecordTimeout(steps()) as timeout:
        timeout.fill(0, out, map(time.sleep, [LIMIT / 2] * 6))
    assert len(out) == 6


def test_swallowed() -> None:
    """A function that catches the exception and goes on hanging is interrupted again."""

    def stubborn(_: int) -> str:
        for _ in range(2):
            try:
                time.sleep(30)
            except Exception:
                continue
        return "done"

    with RecordTimeout(steps()) as timeout:
        assert timeout.one(0, map(stubborn, [1])) == "done"


def test_never_elsewhere() -> None:
    """P8: values that end at about the limit are late or not; the code around them never is.

    Each exception is of the value that took the time; none comes out of our own lines, and none
    hits the value after it.
    """
    chance = random.Random(7)
    waits = [chance.uniform(0.5, 4) * 0.02 for _ in range(150)]
    begun, out, late = [0.0], list[Any](), list[float]()

    def work(wait: float) -> None:
        begun[0] = time.perf_counter()
        while time.perf_counter() < begun[0] + wait:
            pass

    iterator = map(work, waits)
    with RecordTimeout(steps(0.02)) as timeout:
        while len(out) + len(late) < len(waits):
            try:
                timeout.fill(0, out, iterator)
            except RecordTimeoutError:
                late.append(time.perf_counter() - begun[0])
            # Our own work between two values: nothing may come here.
            sum(range(20_000))
    assert late
    assert out
    assert min(late) >= 0.02


def test_never_elsewhere_in_a_flow() -> None:
    """P1, P8: a thousand values around the limit, in two stages: each is in one place."""
    chance = random.Random(11)
    waits = [chance.choice((0.0, 0.0, 0.0, 0.004, 0.005, 0.006, 0.007)) for _ in range(500)]

    @sg.map
    def first(value: bytes) -> int:
        time.sleep(waits[int(value)])
        return int(value)

    @sg.map
    def second(number: int) -> int:
        until = time.perf_counter() + waits[-number]
        while time.perf_counter() < until:
            pass
        return number

    decode = sg.deserialize(sg.Raw(), name="decode")
    like = policy(
        record_timeout=0.005,
        classify=(("sparkguard.errors.RecordTimeoutError", Cause.POISON),),
    )
    sink = ListSink()
    made = plan(
        decode, first, second, policies={"first": like, "second": like}, sinks={"default": sink}
    )

    ran = run(made, *(records([b"%d" % n], n) for n in range(500)))

    left = {letter.record.offset for letter in ran.letters}
    assert left
    assert {t for letter in ran.letters for t in letter.failure.exception_types[:1]} == {
        "sparkguard.errors.RecordTimeoutError"
    }
    assert sorted([*ran.rows, *left]) == list(range(500))
    assert ran.account.balanced


def test_other_stages_have_time() -> None:
    """A stage without a timeout may take any time, between stages that have one."""
    out: list[Any] = []
    with RecordTimeout((*steps(0.05), *steps(None))) as timeout:
        timeout.fill(1, out, map(time.sleep, [0.3]))
        timeout.fill(0, out, iter([1]))
        time.sleep(0.3)
    assert out == [None, 1]


def test_everything_is_given_back() -> None:
    """The signal's handler and Spark's own dump clock are as they were."""
    met: list[int] = []
    before = signal.signal(SIGNAL, lambda number, _: met.append(number))
    try:
        with RecordTimeout(steps()):
            pass
        os.kill(os.getpid(), SIGNAL)
        assert met == [SIGNAL]
    finally:
        signal.signal(SIGNAL, before)


def test_a_handler_of_the_functions_own() -> None:
    """A function that takes the signal for itself keeps it."""

    def own(_number: int, _frame: Any) -> None:
        """Nothing."""

    before = signal.getsignal(SIGNAL)
    try:
        with RecordTimeout(steps()) as timeout:
            timeout.one(0, (signal.signal(SIGNAL, own) for _ in [1]))
        assert signal.getsignal(SIGNAL) is own
    finally:
        signal.signal(SIGNAL, before)


def test_in_another_thread() -> None:
    """Where the pass is no main thread's, no signal goes round; what hangs ends the process."""
    out: list[Any] = []

    def work() -> None:
        with RecordTimeout(steps(0.05)) as timeout:
            timeout.fill(0, out, map(time.sleep, [0.3]))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert out == [None]


def test_it_holds_the_interpreter() -> None:
    """P8: what reacts to nothing ends the process, which says what every thread was at."""
    program = """
import ctypes
from sparkguard.executor.record_timeout import RecordTimeout
from tests.unit.executor.test_record_timeout import steps

def hold(_):
    ctypes.PyDLL(None).sleep(60)

with RecordTimeout(steps()) as timeout:
    timeout.fill(0, [], map(hold, [1]))
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=False
    )
    assert ended.returncode == 1
    assert ended.stderr.startswith("Timeout (")
    assert "in hold" in ended.stderr


def test_in_a_flow() -> None:
    """P8, P9: a late record is an outage's, tried again; as poison it is a letter of its own."""

    @sg.map
    def price(value: bytes) -> int:
        if value == b"hang":
            time.sleep(30)
        return int(value)

    decode = sg.deserialize(sg.Raw(), name="decode")
    like = policy(
        record_timeout=LIMIT,
        classify=(("sparkguard.errors.RecordTimeoutError", Cause.POISON),),
    )
    made = plan(decode, price, policies={"price": like}, sinks={"default": ListSink()})

    ran = run(made, records([b"1", b"hang", b"3"]))

    assert [letter.record.offset for letter in ran.letters] == [1]
    assert ran.rows == [1, 3]
    assert classify(RecordTimeoutError("price", 1.0)) is Cause.TRANSIENT


def test_tried_again_within_its_time() -> None:
    """P7: a retry of a late record has its own time, and what comes of it goes on."""
    hangs = [30.0, 30.0, 0.0]

    @sg.map
    def price(value: bytes) -> int:
        time.sleep(hangs.pop(0) if value == b"2" else 0)
        return int(value)

    decode = sg.deserialize(sg.Raw(), name="decode")
    made = plan(decode, price, policies={"price": policy(record_timeout=LIMIT)})

    ran = run(made, records([b"1", b"2", b"3"]))

    assert ran.rows == [1, 2, 3]
    assert ran.account.total("retries") == 2


def test_a_call_of_many_rows() -> None:
    """P8: of a map_batches it bounds a call, also those that look for bad rows."""
    calls: list[int] = []

    @sg.map_batches(returns="id long")
    def score(batch: pa.RecordBatch) -> pa.RecordBatch:
        calls.append(batch.num_rows)
        if 2 in batch["id"].to_pylist():
            time.sleep(30)
        return batch

    @sg.map
    def number(value: bytes) -> Numbered:
        return Numbered(int(value))

    decode = sg.deserialize(sg.Raw(), name="decode")
    like = policy(
        DeadLetterHandler(),
        record_timeout=LIMIT,
        classify=(("sparkguard.errors.RecordTimeoutError", Cause.POISON),),
    )
    policies: dict[str, Policy] = {"score": like}
    made = plan(decode, number, score, policies=policies, sinks={"default": ListSink()})

    ran = run(made, records([b"0", b"1", b"2", b"3"]))

    assert [row["id"] for row in ran.rows] == [0, 1, 3]
    assert [letter.record.offset for letter in ran.letters] == [2]
    assert calls[:2] == [4, 2]


def test_the_dumps_of_spark_go_on() -> None:
    """Spark's own setting for dumps uses the same clock: afterwards it runs again."""
    program = """
import time
from sparkguard.executor.record_timeout import RecordTimeout
from tests.unit.executor.test_record_timeout import steps

with RecordTimeout(steps()):
    pass
time.sleep(60)
"""
    env = {**os.environ, "PYTHON_TRACEBACK_DUMP_INTERVAL_SECONDS": "1"}
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=env) as running:
        assert running.stderr is not None
        assert running.stderr.readline() == "Timeout (0:00:01)!\n"
        running.kill()


def test_functions_of_c() -> None:
    """P8: that they let no other thread run while they get on is no hang."""
    numbers = range(60_000)
    out: list[int] = []
    with RecordTimeout(steps(0.1)) as timeout:
        timeout.fill(0, out, map(sum, [numbers] * 2_000))
    assert len(out) == 2_000


def test_a_watcher_that_comes_late() -> None:
    """P8: a value's time begins when it is first seen, and not with the machine's."""
    timeout = RecordTimeout(steps(2.0))
    watch, begun = timeout._watch, threading.Event()

    def late() -> None:
        begun.wait()
        watch()

    timeout._thread = threading.Thread(target=late, daemon=True)
    out: list[None] = []

    def slow() -> Iterator[None]:
        begun.set()
        time.sleep(0.8)
        yield None

    with timeout:
        timeout.fill(0, out, slow())
    assert out == [None]
