"""The workflow engine of the examples on a real broker, killed; and its naive form, which loses."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil
import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition

import sparkguard as sg
from sparkguard.core.ledger import Account
from sparkguard.driver.ledger import Ledger
from sparkguard.driver.state import State
from tests.support.jars import connector_jars
from tests.support.kafka import Broker, Message
from tests.support.process import Child
from tests.support.spark import ROOT, SHORT_LIVED

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

EXAMPLE = ROOT / "examples" / "workflow_engine"
TASKS = list(range(10))
COUNT, LOST = 2_000, 20
PATIENCE = 300
"""Seconds after which a driver counts as hanging; the machine may be slow."""

Place = tuple[int | None, int | None]


class Workflow:
    """The scripts of the example, with topics and a folder of their own."""

    def __init__(self, broker: Broker, folder: Path) -> None:
        self.broker, self.folder = broker, folder
        # One for all looks: a new one for each look would not know the partitions at once.
        self.consumer = Consumer({"bootstrap.servers": broker.servers, "group.id": "looks"})
        mark = uuid4().hex[:8]
        self.results, self.executions, self.naive, self.dead = (
            f"{name}-{mark}" for name in ("results", "executions", "naive", "dead")
        )
        self.env = {
            **os.environ,
            "KAFKA": broker.servers,
            "KAFKA_JARS": ",".join(map(str, connector_jars())),
            "PYSPARK_SUBMIT_ARGS": SHORT_LIVED,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "OUT": str(folder),
            "RESULTS": self.results,
            "EXECUTIONS": self.executions,
            "NAIVE": self.naive,
            "DEAD": self.dead,
            "BATCH": "5000",
        }

    def run(self, script: str, *args: str) -> str:
        """Run a script to its end; what it printed."""
        command = [sys.executable, str(EXAMPLE / script), *args]
        ran = subprocess.run(
            command, env=self.env, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        assert ran.returncode == 0, ran.stdout[-1000:] + ran.stderr[-4000:]
        return ran.stdout

    def lines(self) -> int:
        """How many lines the engine has sent."""
        places = [TopicPartition(self.executions, partition) for partition in range(4)]
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                return sum(self.consumer.get_watermark_offsets(place, 30)[1] for place in places)
            except KafkaException:
                # On a busy machine the broker loses its lead for a moment.
                assert time.monotonic() < deadline
                time.sleep(0.1)

    def last(self, log: str) -> int:
        """The last batch that Spark has noted in `offsets` or in `commits`; -1 for none."""
        found = (self.folder / "checkpoint" / log).glob("[0-9]*")
        return max((int(path.name) for path in found), default=-1)

    def committed(self, batch: int) -> bool:
        """Whether a batch is over."""
        return self.last("commits") >= batch

    def begun(self, batch: int) -> bool:
        """Whether a batch has begun."""
        return self.last("offsets") >= batch

    def sends(self, lines: int) -> bool:
        """Whether the engine has sent more lines than these."""
        return self.lines() > lines

    def account(self, flow: str) -> Account:
        """What the ledger has."""
        return Ledger(State(str(self.folder / "state"))).total(flow)


class Engine:
    """The engine in a process of its own."""

    def __init__(self, workflow: Workflow) -> None:
        self.log = workflow.folder / "engine.log"
        command = [sys.executable, str(EXAMPLE / "engine.py")]
        self.child = Child(command, log=self.log, env=workflow.env)

    def until(self, there: Callable[[], object], every: float = 0.02) -> None:
        """Wait for a progress of the engine."""
        deadline = time.monotonic() + PATIENCE
        while not there():
            assert self.child.running, self.said()
            assert time.monotonic() < deadline, self.said()
            time.sleep(every)

    def said(self) -> str:
        """The end of what the drivers have printed."""
        return self.log.read_text(errors="replace")[-5000:]

    def kill(self) -> None:
        """End the driver with SIGKILL, its JVM first: Python would notice that it is gone."""
        driver = psutil.Process(self.child.process.pid)
        (jvm,) = (one for one in driver.children() if one.name() == "java")
        jvm.kill()
        assert self.child.end(signal.SIGKILL) == -signal.SIGKILL
        jvm.wait(20)

    def stop(self) -> None:
        """Stop it as an operator would."""
        assert self.child.end(signal.SIGTERM, within=60) == 0, self.said()


@pytest.fixture(scope="module")
def workflow(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workflow]:
    """Topics in which the workers have sent their results."""
    made = Workflow(broker, tmp_path_factory.mktemp("workflow"))
    made.run("workers.py")
    yield made
    made.consumer.close()


@pytest.fixture
def engines(workflow: Workflow) -> Iterator[Callable[[], Engine]]:
    """Starts engines, and ends those that a failing test leaves."""
    started: list[Engine] = []

    def start() -> Engine:
        started.append(Engine(workflow))
        return started[-1]

    yield start
    for engine in started:
        if engine.child.running:
            engine.child.end(signal.SIGKILL)


class Sent:
    """What the workers have sent, read and judged without sparkguard."""

    def __init__(self, messages: list[Message]) -> None:
        self.count = len(messages)
        self.broken: set[Place] = set()
        self.poison: set[Place] = set()
        good: list[str] = []
        self.tasks: dict[str, set[int]] = defaultdict(set)
        for message in messages:
            place = message.partition, message.offset
            try:
                result = json.loads(message.value or b"")
            except ValueError:
                self.broken.add(place)
                continue
            if result["task"] not in TASKS:
                self.poison.add(place)
                continue
            good.append(result["id"])
            self.tasks[result["execution"]].add(result["task"])
        self.repeated = len(good) - len(set(good))
        self.good = len(set(good))


def interrupted(workflow: Workflow, start: Callable[[], Engine]) -> list[int]:
    """Kill three drivers, two while they send and one while it computes; the batches cut short."""
    cut = []
    for after, sends in ((-1, True), (1, False), (2, True)):
        engine = start()
        engine.until(partial(workflow.committed, after))
        known, lines = workflow.last("commits"), workflow.lines()
        engine.until(partial(workflow.begun, known + 1))
        if sends:
            engine.until(partial(workflow.sends, lines))
        engine.kill()
        if workflow.last("offsets") > workflow.last("commits"):
            cut.append(workflow.last("offsets"))
    return cut


def everything_merged(workflow: Workflow, engine: Engine, timers: int) -> Sent:
    """What was sent, once each good result has been merged, and each timer has come."""
    sent = Sent(workflow.broker.read_all(workflow.results))
    engine.until(lambda: workflow.account("advance").records_out >= sent.good + timers, every=0.2)
    return sent


def told(workflow: Workflow) -> dict[str, list[dict[str, Any]]]:
    """The lines of each execution, in order: no version is lower than the one before."""
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for message in workflow.broker.read_all(workflow.executions):
        line = json.loads(message.value or b"")
        assert message.key == line["execution"].encode()
        found[line["execution"]].append(line)
    for lines in found.values():
        versions = [line["version"] for line in lines]
        assert versions == sorted(versions)
        # A replay repeats itself word for word, and what is over stays so.
        for before, line in pairwise(lines):
            assert line == before or line["version"] > before["version"]
            if before["status"] != "running":
                assert (line["status"], line["tasks"]) == (before["status"], before["tasks"])
    return found


def test_killed_three_times(
    workflow: Workflow, engines: Callable[[], Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """P1, P3, P4: each result is merged once, no version falls, and the ledger is exact."""
    cut = interrupted(workflow, engines)
    engine = engines()
    timers = LOST
    sent = everything_merged(workflow, engine, timers)
    workflow.run("workers.py", "late")
    sent = everything_merged(workflow, engine, timers)
    engine.stop()

    lines = told(workflow)
    last = {execution: found[-1] for execution, found in lines.items()}
    assert last.keys() == sent.tasks.keys()
    for n in range(COUNT):
        line = last.pop(f"e{n}")
        assert sorted(line["tasks"]) == TASKS
        expected = {"status": "completed", "version": 10, "took": sum(TASKS) + 10, "late": []}
        assert line.items() >= expected.items()
    assert len(last) == LOST
    for line in last.values():
        assert line["status"] == "timed_out"
        assert sorted(line["tasks"] + line["late"]) == TASKS
        assert set(line["late"]) >= {6, 7, 8, 9}
        assert line["version"] == len(TASKS) + 1

    letters = {
        letter.header("sparkguard.id"): tuple(
            int(letter.header(f"sparkguard.{name}") or b"") for name in ("partition", "offset")
        )
        for letter in workflow.broker.read_all(workflow.dead)
    }
    assert Counter(letters.values()) == Counter([*sent.broken, *sent.poison])

    read, merged, out = map(workflow.account, ("results", "advance", "out"))
    assert all(account.balanced for account in (read, merged, out))
    assert read.records_in == sent.count
    assert read.total("dead_lettered") == len(sent.broken) == 40
    assert merged.records_in == read.records_out + timers
    assert merged.records_out == sent.good + timers
    assert merged.total("repeated") == merged.total("skipped") == sent.repeated
    assert merged.total("dead_lettered") == len(sent.poison) == 20

    for name in ("KAFKA", "DEAD", "OUT"):
        monkeypatch.setenv(name, workflow.env[name])
    guard = sg.Guard.from_yaml(EXAMPLE / "guard.yaml")
    audit = guard.audit(checkpoints=[str(workflow.folder / "checkpoint")])
    assert audit.adds_up, audit.checks
    assert {"account", "letters", "source"} == {check.kind for check in audit.checks}

    every = [(line["execution"], line["version"]) for found in lines.values() for line in found]
    assert out.records_out == len(set(every))
    # Had no batch been cut short while it sent, the versions above would prove nothing.
    assert len(cut) >= 2, cut
    assert len(every) > out.records_out


def test_two_writers_lose_results(workflow: Workflow) -> None:
    """What the engine is for: the same results, merged by two queries into states in a topic."""
    printed = workflow.run("naive.py")
    states: dict[bytes | None, list[int]] = {}
    for message in workflow.broker.read_all(workflow.naive):
        states[message.key] = json.loads(message.value or b"")["tasks"]
    short = sum(len(states[b"e%d" % n]) < len(TASKS) for n in range(COUNT))
    assert f"{short:,} of {COUNT:,} executions have lost results." in printed
    assert short > 0
