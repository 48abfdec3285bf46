"""A Spark Connect server from the wheel, on loopback."""

import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import pyspark

from tests.support import parts
from tests.support.process import Child, free_port, listening
from tests.support.spark import CONF, ROOT, connector

START_SECONDS = 90


class ConnectServer:
    """Its process, ended at the exit of a with block.

    Attributes:
        url: to give to ``SparkSession.builder.remote``.
        log: what it and its workers say.
    """

    def __init__(self, *, jars: bool = True) -> None:
        parts.java()
        self._port = free_port()
        self._folder = Path(tempfile.mkdtemp(prefix="sparkguard-connect-"))
        self._conf = CONF | connector(jars)
        self.log = self._folder / "server.log"
        self.url = f"sc://127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        home = self._home()
        conf = {
            **self._conf,
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": str(self._port),
            "spark.local.dir": str(self._folder),
            "spark.sql.warehouse.dir": str(self._folder / "warehouse"),
        }
        command = [str(home / "bin/spark-submit"), "--master", "local[2]"]
        command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
        for key, value in conf.items():
            command += ["--conf", f"{key}={value}"]
        env = {
            **os.environ,
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": str(ROOT),
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        self._child = Child([*command, "spark-internal"], log=self.log, env=env)
        deadline = time.monotonic() + START_SECONDS
        while not listening(self._port):
            said = self.log.read_text(errors="replace")[-2000:]
            assert self._child.running, f"The server has ended: {said}"
            assert time.monotonic() < deadline, f"The server does not start: {said}"
            time.sleep(0.1)
        return self

    def _home(self) -> Path:
        """Spark without the zip of its Python code, which every process would compile anew."""
        home = self._folder / "home"
        home.mkdir()
        for name in ("bin", "jars"):
            (home / name).symlink_to(Path(pyspark.__file__).parent / name)
        return home

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._child.end()
        shutil.rmtree(self._folder, ignore_errors=True)
