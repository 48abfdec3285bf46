"""What all rows share: the session, the frames, the guards, and how to measure."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

import sparkguard as sg
from benchmarks import orders
from benchmarks.compare import Costs, in_turns
from benchmarks.meter import Meter
from tests.support.kafka import Broker


@dataclass(kw_only=True)
class Bench:
    """One run of `python -m benchmarks`.

    Attributes:
        records: of a batch row; the Kafka row takes as many.
        rounds: how often each side of a ratio runs after its warm-ups.
        folder: for letters, state and checkpoints.
    """

    spark: SparkSession
    meter: Meter
    folder: Path
    records: int
    rounds: int
    tell: Callable[[str], None]
    broker_: Broker | None = None
    _frames: dict[tuple[int, int], DataFrame] = field(default_factory=dict)
    _numbers: Any = field(default_factory=itertools.count)

    def frame(self, every: int = 0, records: int | None = None) -> DataFrame:
        """Orders in the JVM's memory, as rows; made once."""
        place = (records or self.records, every)
        if place not in self._frames:
            self.tell(f"making {place[0]:,} orders")
            self._frames[place] = orders.frame(self.spark, *place).localCheckpoint()
        return self._frames[place]

    def forget(self) -> None:
        """Free the frames of a row."""
        for frame in self._frames.values():
            frame._jdf.queryExecution().toRdd().unpersist(False)  # noqa: FBT003, SLF001
        self._frames.clear()

    def compare(
        self, jobs: Mapping[str, Callable[[], object]], *, warm_ups: int = 2, rounds: int = 0
    ) -> Costs:
        """Run jobs in turns."""
        return in_turns(
            jobs,
            self.meter.run,
            rounds=rounds or self.rounds,
            warm_ups=warm_ups,
            tell=self.tell,
        )

    def guard(self, sink: dict[str, Any] | None = None, **stages: dict[str, Any]) -> sg.Guard:
        """A guard with a folder of its own; letters go to files there unless a sink is given."""
        folder = self.fresh("guard")
        return sg.Guard(
            sg.Settings(
                app="benchmark",
                state={"path": str(folder / "state")},
                sinks={"default": sink or {"type": "file", "path": str(folder / "letters")}},
                stages=stages,
            )
        )

    def fresh(self, name: str) -> Path:
        """A folder that nobody has used."""
        return self.folder / f"{name}-{next(self._numbers)}"

    @property
    def broker(self) -> Broker:
        """A broker, started when the first row asks for it."""
        if self.broker_ is None:
            self.tell("starting a Kafka broker")
            self.broker_ = Broker().start()
        return self.broker_


def evaluate(frame: DataFrame) -> None:
    """Compute every row and drop it."""
    frame.write.format("noop").mode("overwrite").save()


def evaluated(frame: DataFrame) -> Callable[[], None]:
    """What evaluates a frame that is made already, as a query makes it once for all its batches."""
    return lambda: evaluate(frame)
