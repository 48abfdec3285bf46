"""Starting the job, and counting what became of every record."""

import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import duckdb
import msgspec
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from sparkguard.core.ledger import Account
from sparkguard.driver.ledger import Ledger
from sparkguard.driver.state import State
from sparkguard.guard import Guard
from tests.faults.job import Job, build
from tests.faults.stages import Order, Priced
from tests.support.kafka import Broker, Message
from tests.support.process import Child
from tests.support.spark import ROOT

PATIENCE = 150
"""Seconds after which a child counts as hanging; the machine may be slow."""


STARTED: "list[Running]" = []
"""Every job of this test run; a test that fails leaves its own to be ended."""


class Running:
    """The job in a process of its own."""

    def __init__(self, job: Job) -> None:
        folder = Path(job.root)
        number = len(list(folder.glob("job-*.json")))
        path = folder / f"job-{number}.json"
        path.write_bytes(msgspec.json.encode(job))
        self.log = folder / f"job-{number}.log"
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", "tests.faults.job", str(path)]
        self.child = Child(command, log=self.log, env=env)
        STARTED.append(self)

    def ended(self, within: float = PATIENCE) -> int:
        """Wait for the end; the exit code, negative for a signal."""
        try:
            return self.child.process.wait(within)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"The job hangs: {self.said()[-5000:]}") from None
        finally:
            self.child.end()

    def said(self) -> str:
        """What it has printed so far."""
        return self.log.read_text(errors="replace")


def finish(spark: SparkSession, job: Job) -> Guard:
    """Start the job again in this process, without its fault, until there is nothing left."""
    guard = job.guard()
    job = msgspec.structs.replace(job, fault="", trigger="all", batch_trick="")
    guard.run(build(spark, job, guard))
    return guard


def wait_for(there: Callable[[], object], what: str, within: float = PATIENCE) -> None:
    """Wait until something is there."""
    deadline = time.monotonic() + within
    while not there():
        assert time.monotonic() < deadline, f"{what} did not come."
        time.sleep(0.02)


def values(count: int, **tricks: Iterable[int]) -> list[bytes]:
    """Orders, of which 1 % do not parse and 1 % are bad, and those with a trick."""
    played = {n: trick for trick, numbers in tricks.items() for n in numbers}
    made = []
    for n in range(count):
        trick, _, at = played.get(n, "bad" if n % 100 == 13 else "").partition("@")
        value = msgspec.json.encode(Order(n, trick, at))
        made.append(value[:-3] if n % 100 == 7 else value)
    return made


def fill_folder(job: Job, lines: list[bytes], files: int) -> None:
    """The lines in so many files, one a batch."""
    folder = Path(job.at("in"))
    folder.mkdir(parents=True, exist_ok=True)
    size = -(-len(lines) // files)
    for part in range(files):
        mine = lines[part * size : (part + 1) * size]
        path = folder / f"{part:03}.json"
        path.write_bytes(b"".join(line + b"\n" for line in mine))
        # Spark takes the oldest first.
        os.utime(path, (1_000_000 + part, 1_000_000 + part))


def fill_topic(broker: Broker, topic: str, lines: list[bytes], partitions: int) -> None:
    """The lines in a topic, over all of its partitions."""
    broker.produce(
        topic,
        (
            Message(
                key=b"\xff%d" % n,
                value=value,
                headers=(("n", b"%d" % n), ("none", None)),
                partition=n % partitions,
            )
            for n, value in enumerate(lines)
        ),
    )


def letter_files(job: Job) -> list[Path]:
    """The files of letters that the job has published."""
    return sorted(Path(job.at("dead")).glob("**/*.parquet"))


class Supervised:
    """`guard.run` in a thread of this process, until the app is asked to stop."""

    def __init__(self, spark: SparkSession, job: Job) -> None:
        self.guard = job.guard()
        self._job = job
        self._start = build(spark, job, self.guard)
        self._error: BaseException | None = None
        self.starts = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.guard.run(self._counted)
        except BaseException as error:
            self._error = error

    def _counted(self) -> StreamingQuery:
        self.starts += 1
        return self._start()

    @property
    def records_in(self) -> int:
        """How many records the ledger has seen; raises what ended the run."""
        if self._error is not None:
            raise self._error
        return Ledger(State(self._job.at("state"))).total("orders").records_in

    def stop(self) -> None:
        """Ask the app to stop, and wait until it has."""
        State(self._job.at("state")).request_stop()
        self.ended()

    def ended(self) -> None:
        """Wait for the end; raises what ended the run."""
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), "The run hangs."
        if self._error is not None:
            raise self._error


class Counted:
    """What a job has left behind: rows, letters and the ledger."""

    def __init__(self, job: Job, broker: Broker | None = None) -> None:
        self.out = _sent(broker, job.sent) if broker and job.sent else _ids(job)
        self.letters = _topic_letters(broker, job.dead) if broker and job.dead else _letters(job)
        self.total: Account = job.guard().ledger.total("orders")

    def holds(self, lines: list[bytes]) -> None:
        """P1, P3, P4: every record is in one place, its bytes are whole, and the ledger says so.

        Rows are compared by id and letters by theirs; the ledger is exact.
        """
        bad = {n for n, line in enumerate(lines) if not _good(line)}
        small = {n for n in range(len(lines)) if n % 10 == 5} - bad
        assert sorted(self.out) == sorted(set(range(len(lines))) - bad - small)
        assert set(self.letters.values()) == {lines[n] for n in bad}
        assert Counter(self.letters.values()) == Counter(lines[n] for n in bad)
        total = self.total
        counted = (total.records_in, total.records_out, total.total("filtered"))
        assert counted == (len(lines), len(self.out), len(small))
        assert total.total("dead_lettered") == len(bad)
        assert total.balanced


def _good(line: bytes) -> bool:
    try:
        return msgspec.json.decode(line, type=Order).do != "bad"
    except msgspec.MsgspecError:
        return False


def _ids(job: Job) -> list[int]:
    out = Path(job.at("out"))
    # Spark's own sink says what it has committed: a killed task leaves half a file beside it.
    listed = [
        msgspec.json.decode(line)["path"].removeprefix("file://")
        for log in (out / "_spark_metadata").glob("[0-9]*")
        for line in log.read_bytes().splitlines()[1:]
    ]
    files = listed or [str(path) for path in out.glob("**/*.parquet")]
    rows = duckdb.execute("select id from read_parquet(?)", [files]).fetchall() if files else []
    return [row[0] for row in rows]


def _sent(broker: Broker, topic: str) -> list[int]:
    """What was sent, once each: a message may come twice, but as it was."""
    found = {(letter.key, letter.value) for letter in broker.read_all(topic)}
    rows = [msgspec.json.decode(value or b"", type=Priced) for _, value in found]
    assert [(row.total, key) for row, (key, _) in zip(rows, found, strict=True)] == [
        (row.id * 1.5, b"%d" % row.id) for row in rows
    ]
    return [row.id for row in rows]


def _letters(job: Job) -> dict[str, bytes]:
    """Value by letter id; a letter that is stored twice counts once."""
    if not letter_files(job):
        return {}
    rows = duckdb.execute(f"select distinct id, value from '{job.at('dead')}/**/*.parquet'")
    return {row[0]: bytes(row[1]) for row in rows.fetchall()}


def _topic_letters(broker: Broker, topic: str) -> dict[str, bytes]:
    return {
        (letter.header("sparkguard.id") or b"").decode(): letter.value or b""
        for letter in broker.read_all(topic)
    }
