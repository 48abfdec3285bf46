"""The table on the screen and the numbers as JSON."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from benchmarks.compare import Row

PATH = Path("build/bench.json")
PAGE = Path("docs/speed.md")
BEGIN, END = "<!-- table: make bench ARGS=--docs -->", "<!-- end of the table -->"
PACKAGES = ("sparkguard", "pyspark", "pyarrow", "msgspec", "confluent-kafka")


def show(rows: Sequence[Row], console: Console) -> None:
    """Print the table."""
    table = Table(title="Ratios: at most the goal is good", title_justify="left")
    for heading in ("row", "what is compared"):
        table.add_column(heading)
    for heading in ("ratio", "min … max", "goal", "wall", "workers", ""):
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(
            row.claim.name,
            row.claim.says,
            f"{row.ratio:.3f}",
            f"{min(row.ratios):.2f} … {max(row.ratios):.2f}",
            "" if row.claim.goal is None else f"{row.claim.goal:.2f}",
            _median(row.wall),
            _median(row.workers),
            {True: "[green]met[/]", False: "[red]missed[/]", None: ""}[row.met],
        )
    console.print(table)
    for row in rows:
        facts = " · ".join(f"{name} {value:,.2f}" for name, value in row.facts.items())
        console.print(f"[dim]{row.claim.name}: {facts}[/]", highlight=False)


def write(rows: Sequence[Row], options: Mapping[str, object], path: Path = PATH) -> None:
    """Write everything that was measured."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows_ = [asdict(row) | {"ratio": row.ratio, "met": row.met} for row in rows]
    machine = {
        "cores": os.cpu_count(),
        "load": os.getloadavg(),
        "python": platform.python_version(),
        **{name: version(name) for name in PACKAGES},
    }
    document = {"machine": machine, "options": options, "rows": rows_}
    path.write_text(json.dumps(document, indent=2) + "\n")


def document(rows: Sequence[Row], options: Mapping[str, object], path: Path = PAGE) -> None:
    """Put the table into the page of the documentation, between its two marks."""
    before, begin, rest = path.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{path} has not the marks {BEGIN} and {END}.")
    lines = [
        "| row | what is compared | ratio | min … max | goal | |",
        "| --- | --- | ---: | ---: | ---: | --- |",
        *(_line(row) for row in rows),
    ]
    told = (
        f"{options['records']:,} records, {options['runs']} runs of each side "
        f"(twice as many for pass and columns), {os.cpu_count()} cores,\n"
        f"Python {platform.python_version()}, pyspark {version('pyspark')}."
    )
    path.write_text("\n".join([before + begin, "", *lines, "", told, "", end + after]))


def _line(row: Row) -> str:
    claim = row.claim
    goal = "" if claim.goal is None else f"{claim.goal:.2f}"
    met = {True: "met", False: "missed", None: ""}[row.met]
    span = f"{min(row.ratios):.2f} … {max(row.ratios):.2f}"
    return f"| {claim.name} | {claim.says} | {row.ratio:.2f} | {span} | {goal} | {met} |"


def _median(values: Sequence[float]) -> str:
    return f"{median(values):.3f}" if values else ""
