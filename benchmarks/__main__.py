"""`python -m benchmarks`: what a guard costs, each cost a ratio measured in one run."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from benchmarks import (
    isolation,
    kafka,
    letters,
    redriven,
    report,
    retries,
    rows,
    sends,
    stateful,
)
from benchmarks.bench import Bench
from benchmarks.compare import Row
from benchmarks.meter import Meter
from tests.support.spark import CONF, session

ROWS: dict[str, Callable[[Bench], list[Row]]] = {
    "pass": rows.one_pass,
    "chained": rows.chained,
    "row-udf": rows.row_udf,
    "from-json": rows.from_json,
    "failing-file": rows.failing_file,
    "failing-kafka": rows.failing_kafka,
    "memory": rows.memory,
    "kafka": kafka.kafka,
    "produce": sends.sends,
    "isolation": isolation.isolated,
    "dlq-ls": letters.listed,
    "redrive": redriven.redriven,
    "retry-service": retries.retry_service,
    "stateful": stateful.stateful,
    "stateful-memory": stateful.memory,
}
LOG = Path("build/bench.log")
NEEDS_KAFKA = {"failing-kafka", "kafka", "produce", "redrive"}


def main() -> None:
    """Measure, print, write."""
    options = _options()
    console = Console()
    console = console if console.is_terminal else Console(width=150)
    _quiet()
    began = time.monotonic()
    with _bench(options, console) as bench:
        found: list[Row] = []
        for name in options.only:
            at = time.monotonic()
            found += ROWS[name](bench)
            bench.forget()
            console.print(f"[dim]{name}: {time.monotonic() - at:.0f} s[/]", highlight=False)
    report.show(found, console)
    chosen = {"records": options.records, "runs": options.runs, "quick": options.quick}
    report.write(found, chosen)
    if options.docs:
        report.document(found, chosen)
    console.print(f"{time.monotonic() - began:.0f} s; all numbers: {report.PATH}")


@contextmanager
def _bench(options: argparse.Namespace, console: Console) -> Iterator[Bench]:
    java = "spark.driver.extraJavaOptions"
    spark = session(
        jars=bool(NEEDS_KAFKA & set(options.only)),
        **{
            "spark.driver.memory": "4g",
            # One collector that works only when asked: less noise than G1 in a short run.
            java: f"{CONF[java]} -XX:+UseParallelGC",
        },
    )
    folder = Path(tempfile.mkdtemp(prefix="sparkguard-benchmark-"))
    with console.status("…") as status:
        bench = Bench(
            spark=spark,
            meter=Meter(spark),
            folder=folder,
            records=options.records,
            rounds=options.runs,
            tell=status.update,
        )
        try:
            yield bench
        finally:
            spark.stop()
            if bench.broker_ is not None:
                bench.broker_.close()
            shutil.rmtree(folder, ignore_errors=True)


def _quiet() -> None:
    """Send what the JVM and its workers say about bad orders to a file; keep our own stderr."""
    LOG.parent.mkdir(parents=True, exist_ok=True)
    sys.stderr = os.fdopen(os.dup(2), "w", buffering=1)
    with LOG.open("w") as log:
        os.dup2(log.fileno(), 2)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--only", type=_names, default=list(ROWS), metavar="ROW[,ROW]", help=f"of {', '.join(ROWS)}"
    )
    parser.add_argument("--runs", type=int, default=5, help="of each side (default 5)")
    parser.add_argument("--records", type=int, default=1_000_000, help="default 1,000,000")
    parser.add_argument(
        "--quick", action="store_true", help="one short run of everything: does it work at all?"
    )
    parser.add_argument("--docs", action="store_true", help=f"also write {report.PAGE}")
    options = parser.parse_args()
    if options.quick:
        options.records, options.runs = 20_000, 1
    return options


def _names(text: str) -> list[str]:
    names = text.split(",")
    unknown = [name for name in names if name not in ROWS]
    if unknown:
        raise argparse.ArgumentTypeError(f"no such row: {', '.join(unknown)}")
    return names


if __name__ == "__main__":
    main()
