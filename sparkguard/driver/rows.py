"""A whole batch to the dead letters, row by row, in the workers."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from sparkguard import pickling
from sparkguard.core.failure import Failure
from sparkguard.executor import row_letters
from sparkguard.executor.plan import ORIGIN_COLUMN
from sparkguard.sinks.base import Sink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def write_letters(
    batch: DataFrame, failure: Failure, sink: str, sinks: Mapping[str, Sink]
) -> int:
    """Store every row of a batch as a letter; how many were stored.

    The batch is evaluated once more for it.
    """
    from pyspark.sql import functions as f

    shown = [name for name in batch.columns if name != ORIGIN_COLUMN]
    row = f.to_json(f.struct(*(f.col(f"`{name}`") for name in shown)), {"ignoreNullFields": "false"})
    hidden = ORIGIN_COLUMN in batch.columns
    origin = f.col(ORIGIN_COLUMN) if hidden else f.lit(None).cast("struct<topic:string>")
    work = pickling.dumps((failure, sink, dict(sinks)))
    stored = batch.select(row.alias("row"), origin.alias("origin")).mapInArrow(
        functools.partial(_write, work), "stored long"
    )
    total = stored.agg(f.sum("stored")).first()
    return int((total and total[0]) or 0)


def _write(work: bytes, batches: Iterable[Any]) -> Iterator[Any]:
    failure, sink, sinks = pickling.loads(work)
    yield from row_letters.write(failure, sink, sinks, batches)
