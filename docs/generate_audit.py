"""The pages on `sparkguard audit` and `status`: their commands run here, over a made app."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
from pyarrow import parquet as pq

from docs.commands import at_noon, printed, workplace
from docs.generate_dlq import letter, write
from sparkguard.core.ledger import FACTS, Account
from sparkguard.driver.accounts import Accounts
from sparkguard.driver.state import State

_SETTINGS = (
    "app: orders\nstate: {path: state}\nsinks:\n  default: {type: file, path: dead-letters}\n"
)
_QUERY = "6fbec91a-bf63-4c44-9e0b-0fd5700f7fd9"
_LETTERS = 10
_PARTITIONS, _FIRST, _BATCH = 3, 1_000, 60

_AUDIT = """<!-- Written by docs/generate.py from docs/generate_audit.py. Change it there. -->

# Audit

`sparkguard audit` computes the account of an app a second time, from what others have kept, and
holds it against the [ledger](ledger.md). It needs no Spark, and may run beside the app: what is
not committed yet is left out on both sides.

{well}

Each line is one thing of which two sides speak; what it takes:

| check | expected | found | asked for by |
| --- | --- | --- | --- |
| `account` | what went into the flow | what came out, was filtered, skipped, dead-lettered | always |
| `letters` | what the ledger has as dead-lettered, by stage | letters in the sinks, each id once | always |
| `delayed` | what the ledger has as put off, by stage | letters in the [retry topic](retry_later.md), each id once | always, where there are any |
| `source` | offsets of Kafka that the query has committed | what went in, by the ledger | `--checkpoint` |
| `output` | rows that should have come out | rows that are there | `--output`, `--output-topic` |
| `places`, doubled | none | coordinates with two rows, two letters, or both | the same, where rows tell their coordinates |
| `places`, missing | filtered, skipped and delayed records | committed offsets without row or letter | that, and `--checkpoint` |

Letters that are [resolved](dlq.md#done-with) or compacted are letters still; those of other apps are
left out. With `--checkpoint` only the queries of these checkpoints are audited, with `--flow` only
these flows; both may be repeated. Where flows of one query stand behind each other (a flow and a
[produce](produce.md) stage), the one that read Kafka is held against the source, and the last one
against the output. That is known where each reads as many records as the one before gave rows.
Where several flows read the same records (branches), nobody knows what their output should be: it
is `not known`, until you ask for one `--flow` and its output.

A record that was [put off](retry_later.md) lies in the retry topic. Where its letter is not there
the verdict is `not known`: retention deletes those that came again long ago. Whether a record came
again is told by the account it is in then.

## What is missing

Here a row has gone from the output:

{missing}

A record that was filtered, skipped or put off has no place, so it looks like one that is lost. The
audit knows from the ledger how many there should be in each batch, and lists the places of those
batches only in which there are more; what another batch has too many, or has lost the counts of, is
no excuse. Letters are compared batch by batch too where counts are lost. At most 20 places are listed; the numbers are whole. In
`missing` a place is one offset or several, `orders[1]@1066..1070`.

| verdict | meaning | exit code |
| --- | --- | --- |
| `ok` | both sides say the same | 0 |
| `counts lost` | of some batches the ledger has only what went in ([operations](operations.md#counts-lost)), and the difference is no larger; lost counts are not wrong ones | 0 |
| `not checked` | there is nothing to hold it against, and why | 0 |
| `missing` | fewer than there should be | 1 |
| `doubled` | more; writing is at least once, so this may be fine for you | 1, with `--allow-doubled` 0 |
| `not known` | it should be there and cannot be read: a corrupt file, a message that is no letter, a beginning of the source that the checkpoint does not have, flows that branch | 1 |

2 is a wrong command line. `--json` has the same lines as objects.

## Rows that tell their coordinates

| output | how |
| --- | --- |
| Parquet | columns `topic`, `partition`, `offset`: `guard.flow(…, carry=["topic", "partition", "offset"])`; behind a plain sink also the hidden column of `carry=sg.ORIGIN` |
| a topic, by `guard.produce` | headers of these names: `headers={{"topic": "topic", "partition": "partition", "offset": "offset"}}` |
| a topic, otherwise | fields of these names in a JSON value, as `to_json(struct(*))` writes them, or such headers |

In a folder that Spark's file sink writes, only what its log (`_spark_metadata`) names counts. Files and
folders that begin with `_` or `.` are passed over. A Delta table is refused: its files do not tell
which rows count; write its rows to Parquet first. An output that is not a row for a row (an
aggregate, a stateful stage, a filter behind the flow) does not add up, and should not be named.

## Limits

- Where a `flat_map` makes several rows of a record, or none, rows are counted, and places cannot be.
- Compacted and transactional topics have offsets without a record. `--holes` says that the source is
  one; then only what is too many is found in it. The same for partitions that were added to a
  running query and did not begin at 0.
- Letters that retention or a person has deleted are missing.
- Who reads the same records again with the same app (a second checkpoint, a batch job twice) gets
  letters with the ids of the first time. Give `--checkpoint`; a batch job has none, and its
  letters then look fewer than were counted.
- Letters in other tools' [dialects](dialects.md) do not tell their app, or not surely: they are
  counted, and the verdict is `not known`.
- Only the newest hundred batches are known one by one. A batch whose account is lost and which is older
  than all of these is not told from a loss, and among the older ones lost counts may hide a loss:
  such a line says `counts lost`, and never `ok`.
- A flow tells that it reads the source by Kafka's columns. One that reads a selection without them,
  beside another that has them and lets all through, looks as if it stood behind that one. Other
  sources have no coordinates, so two flows over one of them are `not known` unless the numbers
  show which is behind which; so are three in a row of which two lose nothing.
- Two queries over one partition are not told apart by places: `missing` is `not checked` then, and
  what is doubled is `not known`.

It reads the id of each letter and the coordinates of each row once. Memory stays bounded, whatever
there is; the temporary folder must have room for the coordinates.

## In code

```python
from pathlib import Path

import sparkguard as sg

Path("numbers.txt").write_text("1\\n2\\nthree\\n")


@sg.deserialize
def number(value: bytes) -> int:
    return int(value)


guard = sg.Guard(sg.Settings(app="audit-page"))
flow = guard.flow(number, name="numbers")
spark.read.text("numbers.txt").transform(flow).write.parquet("out")

audit = guard.audit(outputs=["out"])
assert audit.adds_up, audit.checks
assert [(check.kind, check.found) for check in audit.checks][:2] == [("account", 3), ("letters", 1)]
```

`guard.audit(checkpoints=…, outputs=…, flows=…, holes=…)` gives a frozen value: `checks`, `adds_up`,
`passes(allow_doubled=True)`. An output topic is a `sparkguard.audit.outputs.OutputTopic`.
"""  # noqa: E501 - a row of a table is one line

_STATUS = """<!-- Written by docs/generate.py from docs/generate_audit.py. Change it there. -->

# Status

`sparkguard status` is one look at an app, by its [state](state.md) alone: no Spark, no broker.

{status}

A line for each flow and query: totals of all runs, then the newest batch, how many went into it and
left on the way, and when the account was stored (UTC). Below that, what there is to say:

| line | meaning | exit code |
| --- | --- | --- |
| `restarts of …` | how much of the [limit](supervisor.md) is used | 0 |
| `it would not be restarted` | the limit is used up: the next failure leaves the query down | 1 |
| `over its budget` | a stage stopped its query after a commit, and no batch was counted since | 1 |
| `counts lost` | records of which only is known that they went in ([operations](operations.md#counts-lost)) | 0 |
| `careful since a worker died` | the next tasks look for the record ([outages](outages.md#a-worker-that-dies)) | 0 |
| `isolation` | the bad rows of a batch are looked for, or will be at the next start ([isolation](isolation.md)) | 0 |
| `entries that no account has yet` | files of [Spark Connect](connect.md), settled with the next batch | 0 |
| `the stop marker is set` | queries stop between two batches | 0 |

Exit code 1 is for what needs a person; 2 is a wrong command line. The limits are those of `--config`;
with `sparkguard status APP --state …` they are the defaults. A budget that is exceeded before its
batch is committed is in the query's exception and log, not here. `--json` has all of it, and counts
by stage.
"""  # noqa: E501


def audit_page() -> str:
    """The page, with what the commands really print."""
    command = "audit --config guard.yaml --checkpoint checkpoint --output out"
    with _app() as folder:
        well = printed(command, folder)
        _write_output(without=(1, 1_066))
        missing = printed(command, folder, code=1)
    return _AUDIT.format(well=well, missing=missing)


def status_page() -> str:
    """The page, with what the command really prints."""
    with _app() as folder:
        State("state").store("restarts/build", {"since_commit": 1, "times": []})
        return _STATUS.format(status=at_noon(printed("status --config guard.yaml", folder)))


@contextmanager
def _app() -> Iterator[str]:
    """An app with two committed batches: 360 records, of which 12 were filtered and 10 failed."""
    with workplace(_SETTINGS) as folder:
        letters = [letter(number) for number in range(_LETTERS)]
        write([replace(one, failure=replace(one.failure, query_id=_QUERY)) for one in letters])
        stages = [one.failure.stage for one in letters]
        Accounts(State("state")).store(_account(batch, stages) for batch in range(2))
        _write_checkpoint()
        _write_output()
        yield folder


def _account(batch: int, failed: list[str]) -> Account:
    letters = 0 if batch else len(failed)
    filtered = sum(1 for _, offset in _places(batch) if _filtered(offset))
    counts = {stage: dict.fromkeys(FACTS, 0) for stage in ("decode", "price", "worth_it")}
    counts["worth_it"]["filtered"] = filtered
    for stage in () if batch else failed:
        counts[stage]["dead_lettered"] += 1
    out = _PARTITIONS * _BATCH - filtered - letters
    return Account(
        flow="main",
        query_id=_QUERY,
        batch_id=batch,
        records_in=_PARTITIONS * _BATCH,
        records_out=out,
        rows_out=out,
        stages=counts,
    )


def _places(batch: int) -> list[tuple[int, int]]:
    first = _FIRST + batch * _BATCH
    return [(part, at) for part in range(_PARTITIONS) for at in range(first, first + _BATCH)]


def _filtered(offset: int) -> bool:
    return offset % 30 == 7


def _write_checkpoint() -> None:
    folder = Path("checkpoint")
    for name in ("offsets", "commits", "sources/0"):
        (folder / name).mkdir(parents=True)
    (folder / "metadata").write_text(json.dumps({"id": _QUERY}))
    ends = [{"orders": {str(part): _FIRST + _BATCH * n for part in range(3)}} for n in range(3)]
    (folder / "sources/0/0").write_bytes(b"\0v1\n" + json.dumps(ends[0]).encode())
    for batch, end in enumerate(ends[1:]):
        (folder / f"offsets/{batch}").write_text(f"v1\n{{}}\n{json.dumps(end)}")
        (folder / f"commits/{batch}").write_text("v1\n{}")


def _write_output(without: tuple[int, int] | None = None) -> None:
    failed = {(number % 3, _FIRST + number) for number in range(_LETTERS)}
    rows = [
        {"topic": "orders", "partition": part, "offset": at}
        for part, at in _places(0) + _places(1)
        if (part, at) not in {*failed, without} and not _filtered(at)
    ]
    Path("out").mkdir(exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), "out/part-0.parquet")
