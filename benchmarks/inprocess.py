"""`python -m benchmarks.inprocess`: the pass alone, in one process and without a JVM.

The same Arrow batches go through a guarded flow and through the bare generator, in turns. There is
no Spark in it, so it is far less noisy, and the guard's share is not thinned by what the JVM does.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import pstats
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from statistics import median
from typing import Any

import pyarrow as pa
from rich.console import Console
from rich.table import Table

import sparkguard as sg
from benchmarks import orders, peers
from sparkguard import pickling
from sparkguard.executor.flow_pass import run
from sparkguard.executor.plan import Layout, Plan
from sparkguard.steps import steps_of

Batches = list[pa.RecordBatch]
Pass = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
LAYOUT = Layout(key=0, value=1, headers=2, topic=3, partition=4, offset=5, timestamp=6)
GOALS = {"bare": 1.03, "chained": 0.7, "clean": 1.5}


def main() -> None:
    """Measure, print."""
    options = _options()
    console = Console()
    with tempfile.TemporaryDirectory(prefix="sparkguard-benchmark-") as folder:
        guard = _guard(folder)
        clean, bad = orders.batches(options.records), orders.batches(options.records, 20)
        two = _guarded(guard, "two", orders.decode, orders.price)
        three = _guarded(guard, "three", orders.decode, orders.price, orders.ship)
        if options.profile:
            _profile(two, bad if options.profile == "failing" else clean)
            return
        table = Table(title=f"{options.records:,} orders, CPU time, {options.runs} runs")
        for heading in ("what", "ratio", "min … max", "goal", "µs a record", "µs beside it"):
            table.add_column(heading, justify="right" if heading != "what" else "left")
        for name, ours, theirs in (
            ("guarded / bare", (two, clean), (peers.bare, clean)),
            ("three stages / chained", (three, clean), (_chained, clean)),
            ("5 % failing / clean", (two, bad), (two, clean)),
        ):
            table.add_row(name, *_compared(ours, theirs, options, GOALS[name.split("/ ")[1]]))
        console.print(table)


def _compared(
    ours: tuple[Pass, Batches],
    theirs: tuple[Pass, Batches],
    options: argparse.Namespace,
    goal: float,
) -> list[str]:
    pairs = [
        (_seconds(*ours), _seconds(*theirs))
        if turn % 2
        else (_seconds(*theirs), _seconds(*ours))[::-1]
        for turn in range(options.runs + 1)
    ][1:]
    ratios = [a / b for a, b in pairs]
    each = [median(side) / options.records * 1e6 for side in zip(*pairs, strict=True)]
    span = f"{min(ratios):.3f} … {max(ratios):.3f}"
    return [f"{median(ratios):.3f}", span, f"{goal:.2f}", *(f"{one:.3f}" for one in each)]


def _seconds(do: Pass, batches: Batches) -> float:
    gc.collect()
    began = time.process_time()
    for _ in do(batches):
        pass
    return time.process_time() - began


def _guard(folder: str) -> sg.Guard:
    sink = {"type": "file", "path": f"{folder}/letters"}
    return sg.Guard(sg.Settings(state={"path": f"{folder}/state"}, sinks={"default": sink}))


def _guarded(guard: sg.Guard, name: str, *stages: sg.Stage[Any, Any]) -> Pass:
    flow = guard.flow(*stages, name=name)
    plan = Plan(
        app="benchmark",
        flow=name,
        use="inprocess",
        steps=steps_of(flow.stages, flow.policies),
        layout=LAYOUT,
        shape=flow.shape,
        sinks=flow.bound.sinks,
    )
    return partial(run, pickling.loads(pickling.dumps(plan)), lambda _: None)


def _chained(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return peers.ship_pass(peers.price_pass(peers.decode_pass(batches)))


def _profile(do: Pass, batches: Batches) -> None:
    _seconds(do, batches)
    profiler = cProfile.Profile()
    profiler.runcall(_seconds, do, batches)
    pstats.Stats(profiler).sort_stats("tottime").print_stats(25)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.inprocess", description="The pass alone, without a JVM."
    )
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--profile", choices=["clean", "failing"], help="profile instead")
    return parser.parse_args()


if __name__ == "__main__":
    main()
