"""A whole batch to the dead letters, row by row, in the workers."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from sparkguard import pickling
from sparkguard.core.decide import stage_failed
from sparkguard.core.failure import Failure
from sparkguard.errors import SinkError
from sparkguard.executor import row_letters
from sparkguard.executor.plan import ORIGIN_COLUMN
from sparkguard.frame import quoted
from sparkguard.sinks.base import Sink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_AS_IT_IS = {"ignoreNullFields": "false"}


def write_letters(batch: DataFrame, failure: Failure, sink: str, sinks: Mapping[str, Sink]) -> int:
    """Store every row of a batch as a letter; how many were stored.

    The batch is evaluated once more for it.
    """
    from pyspark.sql import functions as f

    shown = [quoted(name) for name in batch.columns if name != ORIGIN_COLUMN]
    row = f.to_json(f.struct(*shown), _AS_IT_IS)
    hidden = ORIGIN_COLUMN in batch.columns
    origin = f.col(ORIGIN_COLUMN) if hidden else f.lit(None).cast("struct<topic:string>")
    work = pickling.dumps((failure, sink, dict(sinks)))
    stored = batch.select(row.alias("row"), origin.alias("origin")).mapInArrow(
        functools.partial(_write, work), "stored long"
    )
    total = stored.agg(f.sum("stored")).first()
    return int((total and total[0]) or 0)


def _write(work: bytes, batches: Iterable[Any]) -> Iterator[Any]:
    failure, sink, sinks = pickling.loads_on_worker(work)
    try:
        yield from row_letters.write(failure, sink, sinks, batches)
    except SinkError as error:
        # Only text gets back to the driver; so the facts go with it.
        raise stage_failed(failure, "restart" if error.retriable else "fail", str(error)) from error
