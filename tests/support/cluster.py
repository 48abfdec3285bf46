"""A standalone cluster on loopback: a master and two workers on hosts of their own.

Spark speculates a task only on another host, and every address of 127/8 is this machine.
"""

import os
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil
import pyspark

from tests.support.process import Child, free_port
from tests.support.spark import ROOT

HOSTS = ("127.0.0.1", "127.0.0.2")
START_SECONDS = 90


class Cluster:
    """Its processes, ended at the exit of a with block.

    Attributes:
        master: the URL to give to a session.
        workers: its two workers, each of one core.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.workers: list[Child] = []
        self._port = free_port()
        self._children: list[Child] = []
        self.master = f"spark://{HOSTS[0]}:{self._port}"

    def __enter__(self) -> Self:
        place = ["--host", HOSTS[0], "--port", str(self._port), "--webui-port", "0"]
        self._start("master", HOSTS[0], "org.apache.spark.deploy.master.Master", *place)
        self._wait_for("master", "I have been elected leader")
        for number, host in enumerate(HOSTS):
            size = ["--cores", "1", "--memory", "600m", "--webui-port", "0", "--host", host]
            work = ["--work-dir", str(self._folder / f"work-{number}"), self.master]
            main = "org.apache.spark.deploy.worker.Worker"
            self.workers.append(self._start(f"worker-{number}", host, main, *size, *work))
        for number in range(len(HOSTS)):
            self._wait_for(f"worker-{number}", "Successfully registered with master")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for child in reversed(self._children):
            child.end()

    def executors(self) -> dict[int, Child]:
        """The executors that run now, by process id, and the worker of each."""
        return {
            process.pid: worker
            for worker in self.workers
            if worker.running
            for process in psutil.Process(worker.process.pid).children(recursive=True)
            if any("CoarseGrainedExecutorBackend" in word for word in _command(process))
        }

    def _start(self, name: str, host: str, main: str, *args: str) -> Child:
        home = Path(pyspark.__file__).parent
        env = {
            **os.environ,
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": host,
            "SPARK_DAEMON_MEMORY": "200m",
            "PYTHONPATH": str(ROOT),
        }
        command = [str(home / "bin/spark-class"), main, *args]
        child = Child(command, log=self._log(name), env=env)
        self._children.append(child)
        return child

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def _wait_for(self, name: str, line: str) -> None:
        deadline = time.monotonic() + START_SECONDS
        while line not in self._log(name).read_text(errors="replace"):
            said = self._log(name).read_text(errors="replace")[-2000:]
            assert time.monotonic() < deadline, f"The {name} does not start: {said}"
            time.sleep(0.05)


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:  # it has ended meanwhile
        return []
