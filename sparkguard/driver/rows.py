"""Rows of a batch to the dead letters, in the workers."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class Stored:
    """Letters that a sink has acknowledged.

    Attributes:
        identity: of one letter, the id before equal letters were numbered.
    """

    rows: int
    identity: str | None = None


def write_letters(
    batch: DataFrame,
    failure: Failure,
    sink: str,
    sinks: Mapping[str, Sink],
    *,
    seen: Sequence[str] = (),
) -> Stored:
    """Store every row of a batch as a letter; how many were stored.

    The batch is evaluated once more for it.

    Args:
        seen: identities of the letters of this batch that are stored already.
    """
    from pyspark.sql import functions as f

    shown = [quoted(name) for name in batch.columns if name != ORIGIN_COLUMN]
    row = f.to_json(f.struct(*shown), _AS_IT_IS)
    hidden = ORIGIN_COLUMN in batch.columns
    origin = f.col(ORIGIN_COLUMN) if hidden else f.lit(None).cast("struct<topic:string>")
    work = pickling.dumps((failure, sink, dict(sinks), tuple(seen)))
    stored = batch.select(row.alias("row"), origin.alias("origin")).mapInArrow(
        functools.partial(_write, work), "stored long, identity string"
    )
    total = stored.agg(f.sum("stored"), f.max("identity")).first()
    rows, identity = total or (0, None)
    return Stored(int(rows or 0), identity)


def _write(work: bytes, batches: Iterable[Any]) -> Iterator[Any]:
    failure, sink, sinks, seen = pickling.loads_on_worker(work)
    try:
        yield from row_letters.write(failure, sink, sinks, batches, seen=seen)
    except SinkError as error:
        # Only text gets back to the driver; so the facts go with it.
        raise stage_failed(failure, "restart" if error.retriable else "fail", str(error)) from error
