"""The page on `sparkguard dlq`: its commands run here, over letters made for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

from docs.commands import printed, workplace
from sparkguard.core.failure import Category, Cause, Failure
from sparkguard.core.letter import Letter, letter_id
from sparkguard.core.record import Record
from sparkguard.core.version import VERSION
from sparkguard.sinks.base import SinkTask
from sparkguard.sinks.file import FileSink

_WHEN = datetime(2026, 1, 31, 8, tzinfo=UTC)
_SETTINGS = """app: orders
sinks:
  default: {type: file, path: dead-letters}
redrive: {bootstrap_servers: "localhost:9092", topic: orders.redrive}
"""
_KINDS = (
    ("price", "KeyError", "'EURO'", "9c01d2b7a4f35e60", Cause.POISON),
    ("decode", "msgspec.ValidationError", "Expected `int`, got `str`", "41aa07", Cause.POISON),
)

_PAGE = """<!-- Written by docs/generate.py from docs/generate_dlq.py. Change it there. -->

# Dead letters at rest

`sparkguard dlq` looks at letters wherever they lie, in files and in topics, and shows each once,
however often it was stored.

| where | how |
| --- | --- |
| the sinks of a settings file | `--config guard.yaml`, one of them with `--sink topic` |
| a folder, a file, a URI of pyarrow or fsspec | `--path s3://letters/orders` |
| a topic, of sparkguard or of [another tool](dialects.md) | `--topic orders.dead` {servers} |

`--stage`, `--fingerprint`, `--since` and `--until` (a time, or `2h` ago) and `--where` (SQL) select
letters in each command, and `--json` answers programs. A topic is read up to where it ended when
the command began, into a temporary folder and without a consumer group; `--partition`,
`--from-offset` and `--to-offset` take less of it, and `--client key=value` is a setting of
librdkafka. Files are read in place.

Exit codes: 0 done; 1 it could not be done, or there is no such letter; 2 the command line is wrong.
A file that is corrupt or half-written, and messages that are no letters, are left out, counted, and
named on stderr and under `skipped` in JSON.

## What failed

{ls}

Letters of one *fingerprint* are of one exception class at one place in the code. The bars are the
time from the first to the last letter of all groups. *Seen* is when a letter failed last; where a
tool does not write that, its record's own time.

## Why

{show}

By fingerprint the latest letter is shown (`--limit` for more), by id that letter; the beginning of
either is enough. Key and value are shown as JSON, else as text, else in hexadecimal (`--as`), up to
4,000 bytes (`--bytes`). Characters that a terminal would obey are spelled out, here and in every
other command. `--redact` hides values and messages, and keeps facts, names and frames:

{redact}

## How many

{stats}

## Any other question

{sql}

The table `letters` has the columns of a [letter](letter.md) file, and `sink`, `place` (the file, or
topic, partition and offset), `seen` and `resolved`. The SQL is DuckDB's: write `"offset"` and
`"timestamp"` in quotes.

## Take them along

{export}

Parquet is a letter file itself; in JSONL a line is a letter, bytes that are no UTF-8 as
`{{"base64": "…"}}`.

## Sent back

{redrive}

Without `--dry-run` they go, and a journal in the state keeps where to: [redrive](redrive.md).

## Done with

{resolve}

Marks are files beside the letters, which stay; `--all` shows them again. A letter that comes later
is not marked, whatever its fingerprint. Beside a topic nothing can be written: marks of its letters
are files in the app's [state](state.md), so `--config` or `--state` is needed.

## Fewer files

Each task that had letters writes a file. Compaction joins those of a day and leaves second copies
out:

{compact}

New files are there before old ones go, so it may be killed at any time and run beside the query.

## In code

```python
from pathlib import Path

from sparkguard.deadletters.selection import Selection
from sparkguard.deadletters.store import Store
from sparkguard.sinks.file import FileSink

Path("dead-letters").mkdir()
with Store({{"default": FileSink(path="dead-letters")}}) as store:
    for group in store.groups(Selection(stages=("price",))):
        print(group.fingerprint, group.count, group.first, group.last)
    letters = [letter.record.value for letter in store.letters(limit=10)]
assert letters == []
```
"""


def dlq_page() -> str:
    """The page, with what the commands really print."""
    with _letters() as folder:
        where = "--config guard.yaml"
        shown = {
            "servers": "`--bootstrap-servers localhost:9092`",
            "ls": _run(f"ls {where}", folder),
            "show": _run(f"show 9c01 {where}", folder),
            "redact": _run(f"show 9c01 {where} --redact", folder, last=6),
            "stats": _run("stats --path dead-letters", folder),
            "sql": _run(
                f"sql \"select try(decode(value)->>'$.currency') as currency, count(*) as letters "
                f"from letters where stage = 'price' group by all order by 1\" {where}",
                folder,
            ),
            "export": _run(f"export price.parquet --stage price {where}", folder),
            "redrive": _run(f"redrive 9c01 {where} --dry-run", folder),
            "resolve": _run(f"resolve 41aa --reason 'fixed in 1.4' {where}", folder)
            + "\n\n"
            + _run(f"ls {where}", folder),
            "compact": _run("compact --path dead-letters", folder),
        }
    return _PAGE.format(**shown)


def _run(command: str, folder: str, last: int = 0) -> str:
    return printed(f"dlq {command}", folder, last=last)


@contextmanager
def _letters() -> Iterator[str]:
    with workplace(_SETTINGS) as folder:
        for at in range(3):
            write([letter(number) for number in range(at * 10, at * 10 + 11)])
        yield folder


def write(letters: list[Letter]) -> None:
    """Store letters in the folder of the settings."""
    writer = FileSink(path="dead-letters").open(SinkTask(app="orders"))
    for one in letters:
        writer.write(one)
    writer.flush()


def letter(number: int) -> Letter:
    """One of the letters that the pages show."""
    stage, kind, message, fingerprint, cause = _KINDS[number % 4 == 1]
    when = _WHEN + timedelta(minutes=number**2)
    currency = ("EURO", "BTC")[number % 3 == 0]
    value = f'{{"id": {number}, "currency": "{currency}", "amount": "12.50"}}'
    failure = Failure(
        stage=stage,
        category=Category.PROCESSING if stage == "price" else Category.DESERIALIZATION,
        cause=cause,
        exception_types=(kind, "Exception"),
        message=message,
        trace=f'Traceback (most recent call last):\n  File "orders.py", line 31, in {stage}\n'
        f"    return RATES[order.currency]\n{kind}: {message}\n",
        fingerprint=fingerprint,
        first_failed_at=when,
        last_failed_at=when,
        app="orders",
        flow="main",
        query_name="orders",
        batch_id=number // 10,
        record=Record(
            key=str(number % 7).encode(),
            value=value.encode(),
            headers=(("trace-id", b"7f3a"),),
            timestamp=when - timedelta(seconds=2),
            topic="orders",
            partition=number % 3,
            offset=1_000 + number,
        ),
    )
    return Letter(id=letter_id(failure), failure=failure, version=VERSION)
