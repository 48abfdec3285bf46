"""Spark Connect: what stands in for the JVM that a classic driver has beside it.

There a batch function runs in a Python process of the server, one for each run of a query. It
reaches Spark as any client does: its jobs run on other threads than the query's, and know
nothing of the query but a tag.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from sparkguard.errors import UnsupportedError
from sparkguard.executor.task import TAG, tag
from sparkguard.sinks.memory import MemorySink

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyspark.sql import DataFrame

    from sparkguard.driver.attempts import BatchStage
    from sparkguard.sinks.base import Sink


def is_connect(session: Any) -> bool:
    """Whether it is a session of Spark Connect."""
    return type(session).__module__.startswith("pyspark.sql.connect.")


def is_remote() -> bool:
    """Whether this process works with Spark Connect, as far as it is known already."""
    return "SPARK_CONNECT_MODE_ENABLED" in os.environ


def query_of(batch: DataFrame, stage: str) -> Any:
    """The query whose batch it is; None where none runs.

    Spark hands a batch function no query there. The one that runs while its batch does must be
    it; among several, the one that is named like the stage, if all have names.

    Raises:
        UnsupportedError: several run, and the names do not tell.
    """
    active = batch.sparkSession.streams.active
    found = active if len(active) < 2 else [query for query in active if query.name == stage]  # noqa: PLR2004
    nameless = len(active) > 1 and not all(query.name for query in active)
    if nameless or len(found) > 1 or len(found) < len(active[:1]):
        raise UnsupportedError(
            f"On Spark Connect a batch function is not told its query, and {len(active)} run in "
            f'this session: name them all, this one like its stage, .queryName("{stage}"), or give '
            "each query a session of its own, SparkSession.builder.remote(…).create()."
        )
    return found[0] if found else None


def refuse(stage: BatchStage) -> None:
    """Refuse what a batch function cannot do there.

    Raises:
        UnsupportedError: the stage isolates, or a sink keeps its letters in memory.
    """
    if stage.policy.isolate:
        raise UnsupportedError(
            f"Stage {stage.name!r}: 'isolate' sets a batch aside with the JVM of a classic driver, "
            "which Spark Connect has not. Set it to false, and let a flow in front find bad rows, "
            "in a map or map_batches stage."
        )
    refuse_memory(stage.sinks, stage.policy.sinks())


def mark(batch: DataFrame, query: Any, batch_id: int, attempt: int) -> None:
    """Have the jobs that this thread starts from now on tell which try of the batch they are."""
    session = batch.sparkSession
    for old in tuple(session.getTags()):
        if old.startswith(TAG):
            session.removeTag(old)
    session.addTag(tag(query, batch_id, attempt))


def refuse_memory(sinks: Mapping[str, Sink], names: Iterable[str]) -> None:
    """Refuse what needs the driver's own process.

    Raises:
        UnsupportedError: a sink keeps its letters in memory.
    """
    for name in names:
        if isinstance(sinks.get(name), MemorySink):
            raise UnsupportedError(
                f"Sink {name!r} keeps letters in the memory of a classic driver, which Spark "
                "Connect has not: use a sink of type file or kafka."
            )
