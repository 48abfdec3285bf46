"""A stateful query whose workers are killed: ``python -m tests.state.killed folder``."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import msgspec
from pyspark.sql import SparkSession

import sparkguard as sg
from sparkguard.testing import FaultSink
from tests.faults.stages import first_time
from tests.spark.made import ROW, build, guard, write
from tests.support.spark import CONF, session

PROVIDER = "spark.sql.streaming.stateStore.providerClass"
ROCKS = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


class Added(msgspec.Struct):
    """An event."""

    account: str
    number: int
    amount: int
    kills: str = ""


class Sum(msgspec.Struct):
    """A state, and what is told of it."""

    account: str
    total: int = 0
    events: int = 0


@sg.stateful(key="account", state=Sum, sequence="number")
def add(state: Sum | None, event: Added) -> sg.Update[Sum, Sum]:
    """Sums up; an event may kill its worker, once."""
    if event.kills and first_time(event.kills):
        os.kill(os.getpid(), signal.SIGKILL)
    if event.amount < 0:
        raise ValueError(f"{event.number} is negative")
    state = state or Sum(event.account)
    state = Sum(state.account, state.total + event.amount, state.events + 1)
    return sg.Update(state=state, emit=[state])


def run(spark: SparkSession, folder: Path) -> None:
    """Run the query to its end; once, a worker dies right behind its letters' acknowledgement."""
    made = guard(folder)
    made.sinks["default"] = FaultSink(
        inner=made.sinks["default"],
        marker=str(folder / "struck"),
        point="after_flush",
        action="kill",
    )
    frame = spark.readStream.schema(ROW).option("maxFilesPerTrigger", 2)
    decode = sg.deserialize(sg.Json(Added), name="decode")
    flow = made.flow(decode, name="read", carry=sg.ORIGIN)
    added = frame.parquet(str(folder / "in")).transform(flow).transform(made.stateful(add))
    build(added, folder, made.foreach_batch(sg.foreach_batch(write(folder))))().awaitTermination()


if __name__ == "__main__":
    # It lives for seconds: a JVM that optimises little is up sooner.
    options = f"{CONF['spark.driver.extraJavaOptions']} -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    conf = {PROVIDER: ROCKS, "spark.driver.extraJavaOptions": options}
    started = session("local[2,4]", jars=False, **conf)
    run(started, Path(sys.argv[1]))
    started.stop()
