"""What a run costs: seconds of the wall clock, CPU seconds of every process, memory of workers."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil
from pyspark.sql import SparkSession

# By pid and time of birth: the parent, and the CPU seconds of it and of those it waited for.
_Workers = dict[tuple[int, float], tuple[int, float]]


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
        self._jvm = psutil.Process(spark.sparkContext._gateway.proc.pid)  # noqa: SLF001

    def run(self, job: Callable[[], object]) -> Cost:
        """Run a job and measure it; garbage of earlier runs is collected first."""
        self._spark._jvm.System.gc()  # noqa: SLF001
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

    def _workers(self) -> _Workers:
        found: _Workers = {}
        for process in self._jvm.children(recursive=True):
            try:
                times, parent = process.cpu_times(), process.ppid()
            except psutil.NoSuchProcess:
                continue
            seconds = times.user + times.system + times.children_user + times.children_system
            found[process.pid, process.create_time()] = parent, seconds
        return found


def _spent(before: _Workers, after: _Workers) -> float:
    """CPU seconds between two looks; a dead worker's are in the daemon that waited for it.

    A daemon that Spark has ended since had nothing to do, and takes its seconds with it.
    """
    living = {pid for pid, _ in after}
    spent = sum(seconds for _, seconds in after.values())
    for key, (parent, seconds) in before.items():
        if key in after or parent in living:
            spent -= seconds
    return spent


def _seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _peak(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/{pid}/status tells no VmHWM.")
