"""Delayed retry: how late the retry service is, and how soon it is back after a kill -9."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import yaml

from benchmarks.bench import Bench
from benchmarks.compare import Claim, Row
from sparkguard.core.failure import Category, Cause, Failure
from sparkguard.core.letter import Letter
from sparkguard.core.record import Record
from sparkguard.dialects.native import NativeDialect
from tests.support.jars import connector_jars
from tests.support.kafka import Message
from tests.support.process import Child
from tests.support.spark import CONF, ROOT

WAITING = 100_000
A_SECOND = 5_000
ALLOWED = 1.0 + 2.0  # the trigger and two seconds
LEAD = 20.0  # seconds, or as long as a start took: then all of them are taken
PATIENCE = 90.0
SERVICE = Claim("retry-service", f"{A_SECOND:,} due a second, lateness p99 / trigger + 2 s", 1.0)
COMMAND = "from sparkguard.cli import app; app()"
RETRY, BACK = "waiting", "sent-back"


def retry_service(bench: Bench) -> list[Row]:
    """100,000 records wait; half of them come due, then the service is killed and comes back."""
    for topic, config in ((RETRY, {}), (BACK, {"message.timestamp.type": "LogAppendTime"})):
        bench.broker.create_topic(topic, 2, config)
    folder = bench.fresh("retry-service")
    folder.mkdir()
    begun = datetime.now(UTC)
    service = _start(bench, folder)
    try:
        bench.broker.produce(RETRY, _letters(1, begun))
        up = _until(bench, 1) - begun.timestamp()
        first = datetime.now(UTC) + timedelta(seconds=max(LEAD, up))
        bench.tell(f"{WAITING:,} records wait")
        bench.broker.produce(RETRY, _letters(WAITING, first))
        sent = _until(bench, WAITING // 2)
        os.killpg(service.process.pid, signal.SIGKILL)
        killed = time.time()
        service.end(signal.SIGKILL)
        bench.tell("killed, and started again")
        service = _start(bench, folder)
        whole = _when(lambda: _numbers(bench) >= WAITING)
    finally:
        os.killpg(service.process.pid, signal.SIGKILL)
        service.end(signal.SIGKILL)
    came = _came(bench)[1:]
    late = sorted(at - first.timestamp() - number / A_SECOND for number, at in came if at <= sent)
    # No process is up within two seconds: until then comes what the broker had already.
    back = min(at for _, at in came if at > killed + 2)
    p50, p99 = late[len(late) // 2], late[len(late) * 99 // 100]
    facts = {
        "lateness p50, s": p50,
        "lateness p99, s": p99,
        "earliest, s": late[0],
        "start to the first, s": up,
        "kill to the first, s": back - killed,
        "kill to all that is due, s": whole - killed,
        "sent twice": float(len(came) - WAITING),
    }
    return [Row(claim=SERVICE, ratios=[p99 / ALLOWED], facts=facts)]


def _start(bench: Bench, folder: Path) -> Child:
    kafka = {"type": "kafka", "bootstrap_servers": bench.broker.servers, "topic": RETRY}
    settings = {
        "app": "benchmark",
        "state": {"path": str(folder / "state")},
        "sinks": {"retry": kafka, "default": {"type": "file", "path": str(folder / "dead")}},
        "redrive": {"topic": BACK},
    }
    (folder / "guard.yaml").write_text(yaml.safe_dump(settings))
    jars = ",".join(map(str, connector_jars()))
    conf = {**CONF, "spark.jars": jars, "spark.local.dir": str(folder / "spark")}
    given = [part for key, value in conf.items() for part in ("--spark-conf", f"{key}={value}")]
    command = [sys.executable, "-c", COMMAND, "retry-service", "--master", "local[2]"]
    command += ["--config", str(folder / "guard.yaml"), *given]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}
    return Child(command, log=folder / "service.log", env=env)


def _letters(count: int, first: datetime) -> Iterator[Message]:
    """Records of an outage, due one after the other."""
    native, now = NativeDialect(), datetime.now(UTC)
    for number in range(count):
        record = Record(
            key=b"%d" % number, value=b"%d" % number, topic="orders", partition=0, offset=number
        )
        failure = Failure(
            stage="price",
            category=Category.PROCESSING,
            cause=Cause.TRANSIENT,
            exception_types=("builtins.ConnectionError", "builtins.OSError"),
            message="the shop is closed",
            trace="  File pipeline.py, line 12, in price\n" * 20,
            fingerprint="0" * 16,
            first_failed_at=now,
            last_failed_at=now,
            record=record,
            app="benchmark",
            flow="orders",
        )
        due = first + timedelta(seconds=number / A_SECOND)
        letter = Letter(id=f"{number:032x}", failure=failure, due=due)
        yield Message(key=record.key, value=record.value, headers=tuple(native.headers(letter)))


def _came(bench: Bench) -> list[tuple[int, float]]:
    """Which record was sent back when, by the broker's clock."""
    return [
        (int(message.value or b"-1"), (message.timestamp or 0) / 1000)
        for message in bench.broker.read_all(BACK)
    ]


def _numbers(bench: Bench) -> int:
    """How many different records were sent back; read only once there may be enough."""
    if sum(bench.broker.end_offsets(BACK).values()) <= WAITING:
        return 0
    return len({number for number, _ in _came(bench)})


def _until(bench: Bench, count: int) -> float:
    """Wait until so many were sent back; the time of day then."""
    return _when(lambda: sum(bench.broker.end_offsets(BACK).values()) >= count)


def _when(there: Callable[[], bool]) -> float:
    until = time.monotonic() + PATIENCE
    while not there():
        if time.monotonic() > until:
            raise TimeoutError("The retry service stands still.")
        time.sleep(0.05)
    return time.time()
