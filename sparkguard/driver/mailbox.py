"""The mailbox: how the entries of finished tasks reach the driver.

A Spark accumulator carries them: Spark applies the updates of a task once it
has succeeded and before its job returns. Entries have keys, so one that comes
twice (a stage that ran again) overwrites.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sparkguard.core.ledger import Entry

if TYPE_CHECKING:
    from pyspark import Accumulator, SparkContext


class Mailbox:
    """Entries that came from the workers and were not taken yet."""

    def __init__(self, context: SparkContext) -> None:
        from pyspark.accumulators import AccumulatorParam

        class Entries(AccumulatorParam[list[Entry]]):
            def zero(self, value: list[Entry]) -> list[Entry]:
                return []

            def addInPlace(self, value1: list[Entry], value2: list[Entry]) -> list[Entry]:  # noqa: N802
                value1.extend(value2)
                return value1

        self.accumulator: Accumulator[list[Entry]] = context.accumulator([], Entries())

    def take(self) -> list[Entry]:
        """Every entry that came since the last call."""
        arrived: list[Any] = self.accumulator.value
        count = len(arrived)
        taken = arrived[:count]
        # Spark's own thread may append meanwhile; deleting a prefix leaves what it adds.
        del arrived[:count]
        return taken
