"""The main job over files: 100,000 orders, 1,000 of them poison, and what became of every one.

    make demo

Exits with 1 if a single record is missing, or is in two places.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import sparkguard as sg

BATCHES = 10
FLOW = "orders"
FACTS = ("filtered", "skipped", "dead_lettered")


class Order(msgspec.Struct):
    """What a line of the input should hold."""

    id: int
    item: str
    amount: float


class Priced(msgspec.Struct):
    """What goes out."""

    id: int
    item: str
    total: float


class UnpricedError(Exception):
    """A business rule: nobody buys for less than nothing."""


decode = sg.deserialize(sg.Json(Order), name="decode")


@sg.map
def price(order: Order) -> Priced:
    """Adds the tax."""
    if order.amount < 0:
        raise UnpricedError(f"order {order.id} has a negative amount")
    return Priced(order.id, order.item, order.amount * 1.2)


@sg.filter
def worth_it(priced: Priced) -> bool:
    """Drops what costs next to nothing."""
    return priced.total >= 1


def kind(number: int) -> str:
    """What order `number` is: of 200 one is unreadable, one against the rule, ten are too cheap."""
    return {7: "unreadable", 107: "unpriced"}.get(
        number % 200, "cheap" if number % 20 == 3 else "good"
    )


def line(number: int) -> str:
    """Order `number` as a line of the input."""
    match kind(number):
        case "unreadable":
            return f'{{"id": {number}, "item": "bo'
        case "unpriced":
            return json.dumps({"id": number, "item": "book", "amount": -1.0})
        case "cheap":
            return json.dumps({"id": number, "item": "clip", "amount": 0.1})
        case _:
            return json.dumps({"id": number, "item": "book", "amount": 12.5})


def generate(folder: Path, count: int) -> None:
    """Write the orders as one file a micro-batch."""
    folder.mkdir(parents=True)
    for batch in range(BATCHES):
        numbers = range(batch * count // BATCHES, (batch + 1) * count // BATCHES)
        (folder / f"{batch:02}.jsonl").write_text("\n".join(map(line, numbers)))


@contextmanager
def output_to(file: Path) -> Iterator[None]:
    """What this process and those it starts in the block print, goes to a file instead.

    The JVM keeps the file for good, and Python workers write where the JVM does.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    kept = [os.dup(number) for number in (1, 2)]
    with file.open("ab") as log:
        for number in (1, 2):
            os.dup2(log.fileno(), number)
    try:
        yield
    finally:
        for number, before in zip((1, 2), kept, strict=True):
            os.dup2(before, number)
            os.close(before)


def session() -> SparkSession:
    """A small session on this machine alone."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    builder = SparkSession.builder.master("local[2]").appName("sparkguard-demo")
    builder = builder.config("spark.ui.enabled", "false")
    return builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()


def run(spark: SparkSession, folder: Path, advance: Callable[[], None]) -> sg.Account:
    """Run the guarded query over everything in the folder; the ledger's account of it."""
    guard = sg.Guard(
        sg.Settings(
            app="demo",
            state={"path": str(folder / "state")},
            sinks={"default": {"type": "file", "path": str(folder / "dead-letters")}},
        )
    )
    flow = guard.flow(decode, price, worth_it, name=FLOW)

    @sg.foreach_batch
    def store(batch: DataFrame, batch_id: int) -> None:
        batch.write.mode("overwrite").parquet(str(folder / "out" / str(batch_id)))
        advance()

    def build() -> StreamingQuery:
        orders = spark.readStream.option("maxFilesPerTrigger", 1).text(str(folder / "in"))
        return (
            orders.transform(flow)
            .writeStream.foreachBatch(guard.foreach_batch(store))
            .option("checkpointLocation", str(folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )

    guard.run(build)
    return guard.ledger.total(FLOW)


def show_account(console: Console, account: sg.Account) -> None:
    """The table of what became of every record, stage by stage, as the ledger has it."""
    table = Table("stage", *("entered", "went on"), *(fact.replace("_", "-") for fact in FACTS))
    table.title = "What became of every record"
    for column in table.columns[1:]:
        column.justify = "right"
    for stage, counts in account.stages.items():
        gone = [counts[fact] for fact in FACTS]
        numbers = [counts["entered"], counts["entered"] - sum(gone), *gone]
        table.add_row(stage, *(f"{number:,}" for number in numbers))
    console.print(table)


def show_letters(console: Console, letters: str) -> None:
    """One letter of each stage."""
    query = f"""
        select stage, decode(value) as payload, exception_type, message, category, cause,
               file || ', batch ' || batch_id as coordinates, id
        from (select *, row_number() over (partition by stage order by batch_id, id) as nth
              from '{letters}')
        where nth = 1 order by stage
    """
    found = duckdb.execute(query)
    names = [column[0] for column in found.description or ()]
    for row in found.fetchall():
        table = Table(title=f"A letter of stage {row[0]!r}", show_header=False)
        for name, value in zip(names[1:], row[1:], strict=True):
            table.add_row(name, str(value))
        console.print(table)


def proof(folder: Path, count: int, account: sg.Account) -> tuple[list[str], dict[str, int]]:
    """What does not add up, and the counts, from the output's ids and the letters themselves.

    Nothing here asks the ledger what it counted, but for the comparison at the end.
    """
    out = _column(f"select id from '{folder}/out/*/*.parquet'")
    letter = r"regexp_extract(decode(value), '\"id\": (\d+)', 1)::bigint"
    # A letter is stored at least once; its id makes it once.
    once = f"(select distinct id, value from '{folder}/dead-letters/**/*.parquet')"
    letters = _column(f"select {letter} from {once}")
    expected = {name: {n for n in range(count) if kind(n) == name} for name in ("good", "cheap")}
    poison = set(range(count)) - expected["good"] - expected["cheap"]
    gone = set(range(count)) - set(out) - set(letters)
    counts = {"in": count, "out": len(out), "filtered": len(gone), "letters": len(letters)}
    wrong = {
        "The output has not exactly the good orders.": sorted(out) != sorted(expected["good"]),
        "The letters are not exactly the poison.": sorted(letters) != sorted(poison),
        "More is gone than the filter may drop.": gone != expected["cheap"],
        "The ledger counts otherwise.": _by_ledger(account) != counts,
        "The ledger is not balanced.": not account.balanced or account.total("skipped") != 0,
    }
    return [sentence for sentence, is_so in wrong.items() if is_so], counts


def _by_ledger(account: sg.Account) -> dict[str, int]:
    return {
        "in": account.records_in,
        "out": account.records_out,
        "filtered": account.total("filtered"),
        "letters": account.total("dead_lettered"),
    }


def _column(query: str) -> list[Any]:
    return [row[0] for row in duckdb.execute(query).fetchall()]


def main() -> int:
    """Generate, run, show, prove."""
    parser = argparse.ArgumentParser(description="The main job over files.")
    parser.add_argument("--count", type=int, default=100_000, help="how many orders")
    parser.add_argument("--folder", type=Path, default=Path("build/demo"), help="made anew")
    arguments = parser.parse_args()
    count, folder = arguments.count, arguments.folder.absolute()
    console, began = Console(), time.monotonic()

    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    log = folder / "demo.log"
    logging.basicConfig(filename=log, level=logging.INFO)
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        console=console,
    )  # fmt: skip
    with bar:
        steps = bar.add_task("writing orders", total=BATCHES + 2)
        generate(folder / "in", count)
        bar.update(steps, advance=1, description="starting Spark")
        with output_to(log):
            spark = session()
        bar.update(steps, advance=1, description="micro-batches")
        account = run(spark, folder, lambda: bar.advance(steps))
        spark.stop()

    show_account(console, account)
    show_letters(console, f"{folder}/dead-letters/**/*.parquet")
    problems, counts = proof(folder, count, account)
    console.print(
        "[bold]{in:,} in = {out:,} out + {filtered:,} filtered + 0 skipped"
        " + {letters:,} dead-lettered[/bold]".format_map(counts)
    )
    console.print(
        "Counted from the ids in the output and in the letters; the ledger says the same."
        if not problems
        else "\n".join(f"[red]{problem}[/red]" for problem in problems)
    )
    console.print(f"{time.monotonic() - began:.0f} s. Everything is in {folder}", soft_wrap=True)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
