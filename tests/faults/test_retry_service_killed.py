"""kill -9 of `sparkguard retry-service` while records wait in its state."""

import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml

import sparkguard as sg
from sparkguard.core.instant import milliseconds
from sparkguard.core.replay import REDRIVE_ID
from sparkguard.dialects.native import NativeDialect
from tests.conftest import MakeTopic
from tests.faults.harness import wait_for
from tests.support.jars import connector_jars
from tests.support.kafka import Broker, Message
from tests.support.process import Child
from tests.support.spark import CONF, ROOT

COUNT, SPREAD = 200, 12.0
COMMAND = "from sparkguard.cli import app; app()"


class Process:
    """The command, as an operator starts it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        jars = ",".join(map(str, connector_jars()))
        conf = {**CONF, "spark.jars": jars, "spark.local.dir": str(folder / "spark")}
        # What it takes by itself: Spark's own default would be two hundred.
        del conf["spark.sql.shuffle.partitions"]
        given = [part for key, value in conf.items() for part in ("--spark-conf", f"{key}={value}")]
        self._command = [sys.executable, "-c", COMMAND, "retry-service", "--config"]
        self._command += [str(folder / "guard.yaml"), "--master", "local[2]", *given]
        self.child: Child | None = None

    def start(self) -> None:
        """Start it, or start it again."""
        env = {**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}
        self.child = Child(self._command, log=self._folder / "service.log", env=env)

    def kill(self) -> None:
        """SIGKILL to Python and its JVM at once."""
        assert self.child is not None
        os.killpg(self.child.process.pid, signal.SIGKILL)
        assert self.child.end(signal.SIGKILL) == -signal.SIGKILL

    def committed(self) -> dict[str, int]:
        """What is taken from the retry topic for good: offsets by partition."""
        place = self._folder / "state" / "retry-service" / "checkpoint"
        done = [int(one.name) for one in place.glob("commits/*") if one.name.isdigit()]
        if not done:
            return {}
        # A line for each source, behind two of Spark's own.
        _, planned, said, _ = (place / "offsets" / str(max(done))).read_text().splitlines()
        assert json.loads(planned)["conf"]["spark.sql.shuffle.partitions"] == "2"
        (found,) = json.loads(said).values()
        return dict(found)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Process]:
    """A service that is not left behind."""
    made = Process(tmp_path)
    yield made
    if made.child is not None and made.child.running:
        made.kill()


def letters(dues: Mapping[str, datetime]) -> Iterator[Message]:
    """Letters that wait, by id."""
    native = NativeDialect()
    failure = sg.Failure(
        stage="charge",
        category=sg.Category.PROCESSING,
        cause=sg.Cause.TRANSIENT,
        exception_types=("ConnectionError",),
    )
    for name, due in dues.items():
        letter = sg.Letter(id=name, failure=failure, due=due)
        yield Message(key=name.encode(), value=b"v", headers=tuple(native.headers(letter)))


def test_what_waits_survives_a_kill(
    broker: Broker, topic: MakeTopic, tmp_path: Path, service: Process
) -> None:
    """P1: of the records that wait at a kill -9 each arrives, none before it is due, ids are one.

    SIGTERM ends the service between two batches, with exit code 0.
    """
    retry, back = topic(2), topic(1, message_timestamp_type="LogAppendTime")
    kafka = {"type": "kafka", "bootstrap_servers": broker.servers, "topic": retry}
    settings = {
        "app": "later",
        "state": {"path": str(tmp_path / "state")},
        "sinks": {"default": {"type": "file", "path": str(tmp_path / "dead")}, "retry": kafka},
        "redrive": {"topic": back},
    }
    (tmp_path / "guard.yaml").write_text(yaml.safe_dump(settings))
    first = {f"{n:032}": datetime.now(UTC) for n in range(10)}
    broker.produce(retry, letters(first))
    service.start()
    wait_for(lambda: sum(broker.end_offsets(back).values()) == len(first), "What was due")

    begun = datetime.now(UTC) + timedelta(seconds=5)
    step = timedelta(seconds=SPREAD / COUNT)
    waiting = {f"{n:032}": begun + n * step for n in range(100, 100 + COUNT)}
    broker.produce(retry, letters(waiting))
    ends = {str(at): end for at, end in broker.end_offsets(retry).items()}
    wait_for(lambda: service.committed() == ends, "The commit of what waits")
    service.kill()
    assert sum(broker.end_offsets(back).values()) < len(first) + COUNT // 2, "the kill came late"
    service.start()
    wait_for(lambda: sum(broker.end_offsets(back).values()) >= len(first) + COUNT, "What was held")
    assert service.child is not None
    assert service.child.end(within=60) == 0

    came: dict[str, list[int]] = {}
    for message in broker.read_all(back):
        assert message.header(REDRIVE_ID) == b"retry/" + (message.key or b"")
        came.setdefault((message.key or b"").decode(), []).append(message.timestamp or 0)
    assert came.keys() == {**first, **waiting}.keys()
    assert all(min(came[name]) >= milliseconds(due) for name, due in waiting.items())
    assert time.time() > (begun + (COUNT - 1) * step).timestamp()
