"""A soak: a steady load with poison, and faults from a seed, until the account is compared.

python -m tests.soak --minutes 10 --seed 7
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil

from sparkguard.driver.ledger import Ledger
from sparkguard.driver.state import State
from tests.faults.harness import Counted, Running, values
from tests.faults.job import Job
from tests.soak.load import Load
from tests.soak.proxy import Proxy, installed
from tests.support.kafka import Broker
from tests.support.process import free_port

RATE = 150.0
GRACE = 180
"""Seconds in which everything that was sent must be in the account."""
GROWTH = 1.25
FILES = 64
"""By so much memory may grow in the calm part, and so many more files may be open."""


class Soak:
    """One run; everything random comes from its seed."""

    def __init__(self, minutes: float, seed: int, stack: ExitStack) -> None:
        self.seconds = minutes * 60
        self.random = random.Random(seed)
        self.root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="soak-")))
        self.proxy: Proxy | None = None
        self.broker, servers = self._broker(stack)
        topics = [self.broker.create_topic(name, 2) for name in ("orders", "dead")]
        self.job = Job(
            root=str(self.root),
            servers=servers,
            topic=topics[0],
            dead=topics[1],
            # Spark tries a task again whose worker died.
            master="local[2,4]",
            trigger="on",
            settings={"restart": {"max_restarts": 50, "max_per_hour": 500}},
        )
        count = int(self.seconds * RATE)
        flaky = {f"fail_once@{self.job.at(f'flaky-{n}')}": [n] for n in range(500, count, 1000)}
        self.lines = values(count, **flaky)
        self.load = Load(self.broker.servers, topics[0], self.lines, RATE)
        self.running = Running(self.job)
        stack.callback(lambda: self.running.child.running and self.running.child.end())
        self.faults: Counter[str] = Counter()
        self._deck: list[Callable[[], None]] = []
        self._pause = threading.Event()

    def _broker(self, stack: ExitStack) -> tuple[Broker, str]:
        """A broker, and the address at which the job finds it: that of a proxy, if there is one."""
        if not installed():
            say("no Go on this machine: the network is not cut")
            broker = stack.enter_context(Broker())
            return broker, broker.servers
        inner, outer = free_port(), free_port()
        broker = Broker()
        broker.second_listener(inner, outer)
        self.proxy = Proxy(outer, inner, self.root / "proxy.log")
        stack.callback(self.proxy.close)
        return stack.enter_context(broker), f"127.0.0.1:{outer}"

    # --- faults -----------------------------------------------------------------------------

    def kill_driver(self) -> None:
        """SIGKILL for the driver and its JVM; an init system starts it again."""
        for pid in reversed(Path(self.job.at("pids")).read_text().split()):
            os.kill(int(pid), signal.SIGKILL)
        self.restarted(-9)

    def kill_worker(self) -> None:
        """SIGKILL for one Python worker."""
        forked = [p for p in self._processes() if _command(p) and _command(p.parent())]
        if forked:
            self.random.choice(forked).kill()

    def kill_broker(self) -> None:
        """SIGKILL for the broker, which comes back."""
        self.broker.kill()
        self._pause.wait(self.random.uniform(0, 5))
        self.broker.start()

    def freeze_broker(self) -> None:
        """SIGSTOP for 15 seconds: nothing answers."""
        self.broker.pause()
        self._pause.wait(15)
        self.broker.resume()

    def cut_network(self) -> None:
        """Connections end, and there are no new ones for up to 15 seconds."""
        if self.proxy is not None:
            self.proxy.cut()
            self._pause.wait(self.random.uniform(1, 15))
            self.proxy.mend()

    def fault(self) -> None:
        """One fault, drawn; each kind comes before one comes again."""
        if not self._deck:
            self._deck = [
                self.kill_driver,
                self.kill_worker,
                self.kill_broker,
                self.freeze_broker,
                *([self.cut_network] if self.proxy else []),
            ]
            self.random.shuffle(self._deck)
        kind = self._deck.pop()
        say(f"{kind.__name__} at {self.load.sent:,} records")
        self.faults[kind.__name__] += 1
        kind()

    def restarted(self, expected: int) -> None:
        """The driver has ended so; start it again, as an init system does."""
        found = self.running.ended()
        if found != expected:
            raise AssertionError(f"the driver ended with {found}: {self.running.said()[-8000:]}")
        Path(self.job.at("pids")).unlink(missing_ok=True)
        self.running = Running(self.job)

    # --- the run ----------------------------------------------------------------------------

    def run(self) -> None:
        """Load and faults; then calm; then the account."""
        self.load.start()
        began = time.monotonic()
        self._until(lambda: self.records_in > 0, "The first batch", GRACE)
        while time.monotonic() < began + self.seconds * 2 / 3:
            self._until(lambda: Path(self.job.at("pids")).exists(), "The driver", GRACE)
            self._pause.wait(self.random.uniform(1, 8))
            self._look()
            self.fault()
        say("calm")
        known = self.records_in
        self._until(lambda: self.records_in > known, "Progress after the faults", GRACE)
        before = self._use()
        self._pause.wait(max(0.0, began + self.seconds - time.monotonic()))
        after = self._use()
        self._end()
        self._bounded(before, after)

    def _end(self) -> None:
        sent = self.load.stop()
        self._until(lambda: self.records_in >= sent, f"The account of {sent:,} records", GRACE)
        State(self.job.at("state")).request_stop()
        code = self.running.ended()
        if code != 0:
            raise AssertionError(f"the driver ended with {code}: {self.running.said()[-8000:]}")
        counted = Counted(self.job, self.broker)
        counted.holds(self.lines[:sent])
        total = counted.total
        say(
            f"{sent:,} in = {total.records_out:,} out + {total.total('filtered'):,} filtered "
            f"+ {total.total('dead_lettered'):,} dead-lettered; {dict(self.faults)}"
        )

    @property
    def records_in(self) -> int:
        """How many records the ledger has."""
        return Ledger(State(self.job.at("state"))).total("orders").records_in

    def _look(self) -> None:
        """A driver ends by our hand alone: an outage is none of its business to die of."""
        if not self.running.child.running:
            raise AssertionError(f"the driver is gone: {self.running.said()[-8000:]}")

    def _until(self, there: Callable[[], object], what: str, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not there():
            self._look()
            if time.monotonic() > deadline:
                raise AssertionError(f"{what} did not come: {self.running.said()[-8000:]}")
            self._pause.wait(0.2)

    def _processes(self) -> list[psutil.Process]:
        driver = psutil.Process(self.running.child.process.pid)
        return [driver, *driver.children(recursive=True)]

    def _use(self) -> dict[str, int]:
        """Resident bytes of the largest Python process, and open files of all."""
        looks = []
        for _ in range(5):
            looks.append(self._used())
            self._pause.wait(0.5)
        # Hadoop forks the JVM for a chmod: for a moment there are two of it.
        least = {name: min(look[name] for look in looks) for name in ("bytes", "files")}
        say(f"{least['bytes'] / 2**20:.0f} MB in the largest, {least['files']} open files")
        return least

    def _used(self) -> Counter[str]:
        found = Counter[str]()
        for process in self._processes():
            try:
                found["files"] += process.num_fds()
                if "java" not in process.name():
                    found["bytes"] = max(found["bytes"], process.memory_info().rss)
            except psutil.NoSuchProcess:
                continue
        return found

    def _bounded(self, before: dict[str, int], after: dict[str, int]) -> None:
        if after["bytes"] > before["bytes"] * GROWTH or after["files"] > before["files"] + FILES:
            raise AssertionError(f"it grows: {before} became {after}")


def _command(process: psutil.Process | None) -> str:
    """What the daemon of the Python workers, and what it forked, were started with."""
    try:
        command = " ".join(process.cmdline()) if process else ""
    except psutil.Error:
        return ""
    return command if "pyspark.daemon" in command else ""


def say(text: Any) -> None:
    """A line with the time."""
    sys.stdout.write(f"{time.strftime('%H:%M:%S')} {text}\n")
    sys.stdout.flush()


def main() -> None:
    """Run as long as asked, from a seed that is printed."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10_000))
    options = parser.parse_args()
    say(f"soak of {options.minutes:g} minutes, --seed {options.seed}")
    with ExitStack() as stack:
        Soak(options.minutes, options.seed, stack).run()


if __name__ == "__main__":
    main()
