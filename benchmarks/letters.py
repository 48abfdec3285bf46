"""Letters: how long a look at many of them takes, and how much memory."""

from __future__ import annotations

import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import duckdb
from pyarrow import parquet as pq

from benchmarks.bench import Bench
from benchmarks.compare import Claim, Row
from sparkguard.core.failure import Category, Cause, Failure
from sparkguard.core.letter import Letter
from sparkguard.core.letter_row import letter_table
from sparkguard.core.record import Record

TIMES = 10  # as many letters as the other rows have records
FILES = 10
SECONDS, BYTES = 10, 10**9
_GROUPS, _MADE = 40, 1_000
_BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
# What wait4 tells of a child counts the memory of the parent that it was forked from.
_RUN = """
import atexit, sys
from sparkguard.cli import app
def tell():
    lines = dict(line.split(":", 1) for line in open("/proc/self/status"))
    sys.stderr.write(lines["VmHWM"].split()[0])
atexit.register(tell)
app()
"""
_TRACE = "".join(f'  File "/app/orders/step{n}.py", line {n}, in step{n}\n' for n in range(30))


def listed(bench: Bench) -> list[Row]:
    """`dlq ls` over ten times the records, in ten files as `compact` leaves them."""
    count = bench.records * TIMES // FILES // _MADE * FILES * _MADE
    folder = bench.fresh("letters")
    folder.mkdir()
    bench.tell(f"making {count:,} letters")
    _make(folder, count)
    runs = []
    for number in range(min(bench.rounds, 3)):
        bench.tell(f"dlq ls: run {number + 1}")
        runs.append(_look(folder))
    last = {"letters": float(count), "s": runs[-1][0], "MB": runs[-1][1] / 1e6}
    says = f"dlq ls over {count:,} letters in files"
    return [
        Row(
            claim=Claim("dlq-ls", f"{says}, seconds / {SECONDS}", 1.0),
            ratios=[seconds / SECONDS for seconds, _ in runs],
            facts=last,
        ),
        Row(
            claim=Claim("dlq-ls-memory", f"{says}, peak bytes / 1 GB", 1.0),
            ratios=[peak / BYTES for _, peak in runs],
        ),
    ]


def _look(folder: Path) -> tuple[float, float]:
    """Seconds of the command in a process of its own, and its largest resident set in bytes."""
    command = [sys.executable, "-c", _RUN, "dlq", "ls", "--path", str(folder), "--json"]
    began = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return time.perf_counter() - began, float(done.stderr) * 1024


def _make(folder: Path, count: int) -> None:
    """A few letters from the code that writes them, each as often as is asked for, by DuckDB."""
    some = folder.parent / f"{folder.name}.parquet"
    pq.write_table(letter_table([_letter(number) for number in range(_MADE)]), some)
    each = count // FILES // _MADE
    for file in range(FILES):
        first = file * each
        duckdb.execute(f"""
            copy (
                select * replace (
                    md5(id || n) as id,
                    "offset" + {_MADE} * n as "offset",
                    last_failed_at + to_seconds(n) as last_failed_at
                )
                from '{some}', range({first}, {first + each}) as times(n)
            ) to '{folder / f"{file}.parquet"}' (compression zstd)""")
    some.unlink()


def _letter(number: int) -> Letter:
    group = number % _GROUPS
    failure = Failure(
        stage=f"stage{group % 5}",
        category=Category.PROCESSING,
        cause=Cause.POISON,
        exception_types=(f"orders.Error{group}", "builtins.ValueError"),
        message=f"order {number} has no price in the list of {group}",
        trace=_TRACE,
        fingerprint=f"{group:016x}",
        first_failed_at=_BEGAN + timedelta(seconds=number),
        last_failed_at=_BEGAN + timedelta(seconds=number),
        record=Record(
            key=b"%d" % number,
            value=b'{"id": %d, "text": "%s"}' % (number, b"x" * 80),
            topic="orders",
            partition=number % 4,
            offset=number,
            timestamp=_BEGAN,
        ),
        app="benchmark",
        flow="orders",
    )
    return Letter(id=str(number), failure=failure, version="0")
