"""Stored states read back, for tests and for a look at a checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from sparkguard.core.versions import remembered
from sparkguard.executor.state_codec import state_codec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Stored(NamedTuple):
    """What is stored of one key.

    Attributes:
        state: None where nothing is stored but events that wait, and what is remembered of others.
        waiting: how many events wait for a missing one; 0 with a `ttl`, which keeps them apart.
    """

    version: int
    state: Any
    waiting: int


def states(
    spark: SparkSession, checkpoint: str, kind: Any, *, operator: int = 0
) -> dict[Any, Stored]:
    """Every key's state as of the last committed batch, through Spark's ``statestore`` source.

    All of them come to the driver.

    Args:
        checkpoint: of the query, which may be running.
        kind: the state's type.
        operator: number of the stateful stage in its query; the last one before the output is 0.
    """
    spark.streams.active  # noqa: B018  # it brings up what reading asks, where no query ran yet
    options = {"stateVarName": "memory", "operatorId": str(operator)}
    rows = spark.read.format("statestore").options(**options).load(checkpoint).collect()
    decode = state_codec(kind)[1]
    found = {}
    for row in rows:
        # With a `ttl`, Spark keeps beside the value when that ends.
        value = row.value.value if "ttlExpirationMs" in row.value else row.value
        memory = remembered(bytes(value.memory))
        state = None if memory.state is None else decode(memory.state)
        found[row.key[0]] = Stored(memory.version, state, len(memory.waiting))
    return found
