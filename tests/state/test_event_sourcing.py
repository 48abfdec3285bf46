"""The example of commands and operations, on a real broker, against an oracle of plain Python."""

from __future__ import annotations

import json
import os
import re
import runpy
import shlex
import signal
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

import sparkguard as sg
from sparkguard.cli import app
from sparkguard.core.ledger import Account
from sparkguard.testing import states
from tests.faults.harness import wait_for
from tests.spark.made import letters
from tests.state.accounts import Oracle, commands
from tests.support.jars import connector_jars
from tests.support.kafka import Broker, Message
from tests.support.process import Child
from tests.support.spark import ROOT

HERE = ROOT / "examples" / "event_sourcing"


class Bank:
    """The example's scripts, its topics and what they leave behind."""

    def __init__(self, broker: Broker, spark: SparkSession, out: Path, prefix: str) -> None:
        self.broker, self.spark, self.out = broker, spark, out
        self.prefix = prefix

    def run(self, script: str) -> dict[str, Any]:
        """Run a script in this process; its names."""
        return runpy.run_path(str(HERE / script), run_name="__main__")

    def topic(self, name: str) -> list[Message]:
        """What lies in one of its topics."""
        return self.broker.read_all(self.prefix + name)

    def rows(self, name: str) -> list[dict[str, Any]]:
        """The messages of a topic, as what they hold."""
        return [json.loads(message.value or b"") for message in self.topic(name)]

    def sent(self) -> int:
        """How many answers lie in the topics."""
        names = (self.prefix + name for name in ("valid-operation", "invalid-operation"))
        return sum(sum(self.broker.end_offsets(name).values()) for name in names)

    def batches(self, what: str) -> set[int]:
        """The batches that the commands' checkpoint has planned or committed."""
        folder = self.out / "commands" / "checkpoint" / what
        return {int(path.name) for path in folder.glob("[0-9]*")}

    def killed(self) -> None:
        """Run the query of commands, and kill it while it sends its second batch."""
        command = [sys.executable, str(HERE / "commands.py")]
        child = Child(command, log=self.out / "killed.log", env={**os.environ, "PER_BATCH": "700"})
        try:
            wait_for(lambda: self.batches("commits") or not child.running, "A first batch", 300)
            before = self.sent()
            wait_for(lambda: self.sent() > before or not child.running, "An answer of the second")
            assert child.running, (self.out / "killed.log").read_text()[-3000:]
        finally:
            # Python and its JVM.
            os.killpg(child.process.pid, signal.SIGKILL)
            child.end()
        assert self.batches("offsets") - self.batches("commits")

    def account(self, query: str, flow: str) -> Account:
        """What the ledger says of a flow."""
        return sg.Guard.from_yaml(HERE / f"{query}.yaml").ledger.total(flow)


@pytest.fixture
def bank(
    spark: SparkSession, broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Bank]:
    """The example with topics and a folder of its own; what it sets in the session goes again."""
    prefix = f"bank-{uuid4().hex[:8]}-"
    jars = ",".join(map(str, connector_jars()))
    for name, value in {
        "KAFKA": broker.servers,
        "KAFKA_JARS": jars,
        "PYSPARK_SUBMIT_ARGS": f"--jars {jars} pyspark-shell",
        "OUT": str(tmp_path),
        "PREFIX": prefix,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PYTHONPATH", str(HERE), prepend=os.pathsep)
    monkeypatch.chdir(ROOT)
    monkeypatch.syspath_prepend(str(HERE))
    before = spark.conf.getAll
    yield Bank(broker, spark, tmp_path, prefix)
    for name in ("bank", "refresh"):
        sys.modules.pop(name, None)
    for name in spark.conf.getAll.keys() - before.keys():
        spark.conf.unset(name)
    for name, value in before.items():
        if spark.conf.isModifiable(name):
            spark.conf.set(name, value)


def holds(bank: Bank, oracle: Oracle) -> None:
    """Every command is where the oracle has it, and in no second place; the numbers say so."""
    fates = oracle.fates
    counts = {fate: len(ids) for fate, ids in fates.items()}
    read, decided = bank.account("commands", "commands"), bank.account("commands", "decide")
    published = bank.account("commands", "publish")
    answers = counts["valid"] + counts["invalid"]
    assert (read.records_in, read.records_out) == (
        sum(counts.values()),
        sum(counts.values()) - counts["unreadable"],
    )
    assert (decided.records_in, decided.records_out) == (read.records_out, answers)
    assert decided.total("skipped") == decided.total("repeated") == counts["repeated"]
    assert decided.total("dead_lettered") == counts["conflict"] + counts["failed"]
    assert (published.records_in, published.records_out) == (answers, answers)
    assert read.balanced
    assert decided.balanced

    valid = {one["command_id"]: one for one in bank.rows("valid-operation")}
    assert valid == {one["command_id"]: one for one in oracle.operations}
    invalid = {one["command_id"]: one["reason"] for one in bank.rows("invalid-operation")}
    assert invalid.keys() == set(fates["invalid"])
    assert all(invalid.values())

    left: dict[str, list[str]] = defaultdict(list)
    for one in letters(bank.out, "commands/dead-letters"):
        value = one.record.value or b""
        kind = one.failure.exception_type.rpartition(".")[2]
        known = json.loads(value)["command_id"] if one.failure.stage == "decide" else str(value)
        left[kind].append(known)
    assert {kind: Counter(ids) for kind, ids in left.items()} == {
        "ValidationError": Counter(one for one in fates["unreadable"] if "steal" in one),
        "DecodeError": Counter(one for one in fates["unreadable"] if "steal" not in one),
        "InvalidOperation": Counter(fates["failed"]),
        "ConflictError": Counter(fates["conflict"]),
    }


def projected(bank: Bank, oracle: Oracle) -> None:
    """Balances and sums are those of the oracle, however often an operation came."""
    names = bank.run("projections.py")
    checkpoint = str(bank.out / "projections" / "checkpoint")
    totals = states(bank.spark, checkpoint, names["Total"])
    assert {key: (one.state.count, one.state.cents) for key, one in totals.items()} == (
        oracle.totals()
    )
    balances = states(bank.spark, checkpoint, names["Balance"], operator=1)
    assert {key: (one.state.cents, one.version) for key, one in balances.items()} == oracle.accounts
    told = max_by_count(bank.rows("categories"))
    assert told == oracle.totals()

    operations, once = len(oracle.operations), bank.account("projections", "once")
    came = len(bank.topic("valid-operation"))
    assert (once.records_in, once.records_out) == (came, operations)
    assert once.total("repeated") == came - operations > 0
    opened = len(oracle.accounts)
    for flow in ("add", "publish"):
        account = bank.account("projections", flow)
        assert (account.records_in, account.records_out) == (operations - opened,) * 2
        assert account.balanced


def max_by_count(rows: list[dict[str, Any]]) -> dict[str, tuple[int, int]]:
    """Of each category the message with the highest count."""
    found: dict[str, tuple[int, int]] = {}
    for row in rows:
        was = found.get(row["category"], (0, 0))
        found[row["category"]] = max(was, (row["count"], row["cents"]))
    return found


def redriven(bank: Bank, *, in_process: bool) -> dict[str, Any]:
    """Send the conflicts again, by the command that refresh.py shows."""
    shown = (HERE / "refresh.py").read_text().partition("sparkguard ")[2].partition("\n\n")[0]
    arguments = [*shlex.split(shown.replace("\\\n", " ")), "--json"]
    if in_process:
        done = CliRunner().invoke(app, arguments)
        assert done.exit_code == 0, done.output
        return dict(json.loads(done.stdout))
    command = [str(Path(sys.executable).with_name("sparkguard")), *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr[-3000:]
    return dict(json.loads(ran.stdout))


def cli(*arguments: str) -> Any:
    """What a command answers to a program."""
    config = ["--config", str(HERE / "commands.yaml"), "--json"]
    done = CliRunner().invoke(app, [*arguments, *config])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def conflicts_ended(bank: Bank, oracle: Oracle) -> tuple[Oracle, list[str]]:
    """Redrive until no conflict is left; what the oracle says then, and the redrives."""
    conflicts, runs = Counter(oracle.fates["conflict"]), list[str]()
    while conflicts:
        before = {(one.partition, one.offset) for one in bank.topic("commands")}
        went = redriven(bank, in_process=bool(runs))
        assert went["through"] == conflicts.total()
        runs.append(went["redrive"])
        again = [
            json.loads(one.value or b"")
            for one in bank.topic("commands")
            if (one.partition, one.offset) not in before
        ]
        # Who was answered in the meantime is not asked for again.
        answered = oracle.answered()
        open_ = {id_: count for id_, count in conflicts.items() if id_ not in answered}
        assert Counter(one["command_id"] for one in again) == open_
        for one in again:
            assert one["expected_version"] == oracle.accounts[one["account"]][1]
        bank.run("commands.py")
        known = Counter(oracle.fates["conflict"])
        oracle = Oracle(bank.topic("commands"))
        holds(bank, oracle)
        conflicts = Counter(oracle.fates["conflict"]) - known
    return oracle, runs


def disjoint(oracle: Oracle, sent: list[Message]) -> None:
    """Every command ended in one way, and none in two."""
    ways = [set(oracle.fates[fate]) for fate in ("valid", "invalid", "failed")]
    together = set().union(*ways)
    assert sum(map(len, ways)) == len(together)
    said = b"".join(one.value or b"" for one in sent)
    assert {id_.decode() for id_ in re.findall(rb'"command_id": "(c\d+)"', said)} <= together
    assert set(oracle.fates["conflict"]) <= oracle.answered()


def kept(bank: Bank, oracle: Oracle, kind: Any) -> None:
    """The stored accounts: a refused command has raised no version."""
    stored = states(bank.spark, str(bank.out / "commands" / "checkpoint"), kind)
    opened = {key: one for key, one in stored.items() if one.state is not None}
    assert {key: (one.state.cents, one.version) for key, one in opened.items()} == oracle.accounts
    assert all(one.state.version == one.version for one in opened.values())
    assert {one.version for key, one in stored.items() if key not in opened} == {0}


def told(bank: Bank, oracle: Oracle, runs: list[str]) -> None:
    """The commands say that the conflicts came through, and that the account adds up."""
    at = ("--checkpoint", str(bank.out / "commands" / "checkpoint"))
    for one in cli("dlq", "redrives", *at)["redrives"]:
        assert one["outcomes"] == {**dict.fromkeys(one["outcomes"], 0), "through": one["letters"]}
    for redrive in runs:
        cli("dlq", "redrives", redrive, *at, "--resolve")
    left = {one["exception"]: one["count"] for one in cli("dlq", "ls")["groups"]}
    assert left["decimal.InvalidOperation"] == len(oracle.fates["failed"])
    assert not [exception for exception in left if "ConflictError" in exception]
    assert {check["verdict"] for check in cli("audit", *at)["checks"]} == {"ok"}


@pytest.mark.timeout(600)
def test_commands_and_operations(bank: Bank) -> None:
    """P1, P4: the driver killed while it sends: outcomes and failures never mix, nothing doubles.

    Conflicts go through by redrive, each for the version that its account has by then.
    """
    bank.run("fill.py")
    sent = [Message(key=key.encode(), value=value) for key, value in commands(5, 2_500, 200)]
    bank.broker.produce(bank.prefix + "commands", sent)

    bank.killed()
    names = bank.run("commands.py")
    oracle = Oracle(bank.topic("commands"))
    assert min(map(len, oracle.fates.values())) > 20
    holds(bank, oracle)
    projected(bank, oracle)

    oracle, runs = conflicts_ended(bank, oracle)
    # Three wanted the same version of one account: the third goes with the second redrive.
    assert len(runs) == 2
    disjoint(oracle, sent)
    projected(bank, oracle)
    kept(bank, oracle, names["Account"])
    told(bank, oracle, runs)
