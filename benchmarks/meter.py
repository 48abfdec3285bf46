"""What a run costs: seconds of the wall clock, CPU seconds of every process, memory of workers."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from pyspark.sql import SparkSession

_Birth = tuple[int, float]  # a pid alone may be given anew


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """One run.

    Attributes:
        wall: seconds.
        cpu: user and system seconds of the driver (Python and JVM) and of its workers.
        workers: the part of `cpu` that the Python workers took.
    """

    wall: float
    cpu: float
    workers: float


class Meter:
    """Measures runs in one Spark session."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._numbers = itertools.count()
        gateway: Any = spark.sparkContext._gateway  # noqa: SLF001
        self._jvm = psutil.Process(gateway.proc.pid)
        self._system: Any = gateway.jvm.System

    def run(self, job: Callable[[], object]) -> Cost:
        """Run a job and measure it; garbage of earlier runs is collected first."""
        self._system.gc()
        driver, workers, began = self._driver(), self._workers(), time.perf_counter()
        job()
        wall = time.perf_counter() - began
        in_workers = _spent(workers, self._workers())
        return Cost(wall=wall, cpu=self._driver() - driver + in_workers, workers=in_workers)

    def peak_memory(self, job: Callable[[], object]) -> int:
        """The largest resident set, in bytes, that a worker reached in a run.

        The job must make its frame itself: a changed environment gives it workers that have
        done nothing before.
        """
        environment = self._spark.sparkContext.environment
        before = {process.pid for process in self._jvm.children(recursive=True)}
        environment["SPARKGUARD_BENCHMARK_WORKERS"] = str(next(self._numbers))
        try:
            job()
            new = [p.pid for p in self._jvm.children(recursive=True) if p.pid not in before]
            return max(_peak(pid) for pid in new)
        finally:
            del environment["SPARKGUARD_BENCHMARK_WORKERS"]

    def _driver(self) -> float:
        return _seconds(self._jvm) + _seconds(psutil.Process(os.getpid()))

    def _workers(self) -> dict[_Birth, float]:
        found = {}
        for process in self._jvm.children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                found[process.pid, process.create_time()] = _seconds(process)
        return found


def _spent(before: dict[_Birth, float], after: dict[_Birth, float]) -> float:
    """CPU seconds between two looks.

    Of workers that live; one that Spark ends was idle for a minute, and nobody keeps its account.
    """
    return sum(seconds - before.get(birth, 0.0) for birth, seconds in after.items())


def _seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _peak(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/{pid}/status tells no VmHWM.")
