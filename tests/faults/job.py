"""A pipeline as a process of its own, to be killed: ``python -m tests.faults.job job.json``.

Files or Kafka in, a guarded flow, a file a batch out; the fault that is asked for
happens once.
"""

import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import sparkguard as sg
from sparkguard.testing import FaultSink
from tests.faults.stages import decode, first_time, message, price, worth_it
from tests.support.spark import CONF, session


class Job(msgspec.Struct, kw_only=True):
    """One pipeline.

    Attributes:
        root: folder of everything it writes, and of its input where that is files.
        servers, topic, dead, sent: of Kafka; files where they are empty. What is `sent` was
            produced by the workers.
        client: settings of the producer of letters.
        fault: ``before_flush`` or ``after_flush`` of the letters, ``settled`` (accounts are
            stored, the batch is not committed), ``committed`` (it is, the accounts are not
            stored): the driver is killed there, once; or ``sending``, in the middle of that.
        fault_kills: ``worker`` instead, for the first two and the last.
        fault_batch: the batch of ``settled`` and ``committed``.
        writer: ``foreach_batch``, or ``parquet`` for Spark's own sink.
        slices: partitions of each batch, where not left to the source.
        trigger: ``all`` takes what there is and ends; ``on`` goes on until it is stopped.
        batch_trick: what the batch function does beside writing.
        settings: more of the guard's settings.
    """

    root: str
    servers: str = ""
    topic: str = ""
    dead: str = ""
    sent: str = ""
    client: dict[str, Any] = {}
    master: str = "local[2]"
    conf: dict[str, str] = {}
    fault: str = ""
    fault_kills: str = "driver"
    fault_batch: int = 1
    writer: str = "foreach_batch"
    slices: int = 0
    trigger: str = "all"
    batch_trick: str = ""
    per_trigger: int = 1000
    settings: dict[str, Any] = {}

    def at(self, name: str) -> str:
        """A path in the job's folder."""
        return f"{self.root}/{name}"

    def guard(self) -> sg.Guard:
        """The guard of this job; any process may read its ledger."""
        sink: dict[str, Any] = {"type": "file", "path": self.at("dead")}
        if self.dead:
            sink = {"type": "kafka", "bootstrap_servers": self.servers, "topic": self.dead}
            sink["config"] = self.client
        known: dict[str, Any] = {
            "app": "fault",
            "state": {"path": self.at("state")},
            "sinks": {"default": sink},
        }
        return sg.Guard(sg.Settings(**{**known, **self.settings}))


def source(spark: SparkSession, job: Job) -> DataFrame:
    """What the job reads."""
    if not job.topic:
        reader = spark.readStream.format("text").option("maxFilesPerTrigger", 1)
        frame = reader.load(job.at("in"))
        return frame.repartitionByRange(job.slices, "value") if job.slices else frame
    return (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", job.servers)
        .option("subscribe", job.topic)
        .option("startingOffsets", "earliest")
        .option("includeHeaders", "true")
        .option("maxOffsetsPerTrigger", job.per_trigger)
        .load()
    )


def store(job: Job) -> Callable[[DataFrame, int], None]:
    """The batch function: idempotent by batch id."""

    @sg.foreach_batch(name="store")
    def write(batch: DataFrame, batch_id: int) -> None:
        match job.batch_trick:
            case "twice":
                batch.count()
            case "partly":
                batch.first()
                batch.isEmpty()
            case "outage" if not Path(job.at("up")).exists():
                Path(job.at("met")).touch()
                raise ConnectionError("the target is down")
            case "fail_once" if first_time(job.at(f"failed-{batch_id}")):
                raise ConnectionError("once")
            case "exit":
                raise SystemExit(3)
            case "slow":
                time.sleep(1)
            case "hang":
                Path(job.at("met")).touch()
                time.sleep(120)
            case _:
                pass
        batch.write.mode("overwrite").parquet(job.at(f"out/{batch_id}"))

    return write


def out(job: Job) -> sg.Stage[..., Any]:
    """The stage that sends."""
    root = job.root if job.fault == "sending" else ""
    return sg.produce(
        name="out",
        topic=job.sent,
        key="id",
        value=partial(message, root=root, kills=job.fault_kills),
        producer={"bootstrap.servers": job.servers},
    )


def build(spark: SparkSession, job: Job, guard: sg.Guard) -> Callable[[], StreamingQuery]:
    """What starts the query."""
    flow = guard.flow(decode, price, worth_it, name="orders")
    frame = source(spark, job)
    guarded: Callable[..., None] = (
        guard.produce(out(job)) if job.sent else guard.foreach_batch(store(job))
    )

    def doomed(batch: DataFrame, batch_id: int) -> None:
        guarded(batch, batch_id)
        if job.fault == "settled" and batch_id == job.fault_batch:
            die(job)

    def start() -> StreamingQuery:
        writer = frame.transform(flow).writeStream
        writer = writer.option("checkpointLocation", job.at("checkpoint"))
        if job.trigger == "all":
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime="100 milliseconds")
        if job.writer == "foreach_batch":
            return writer.foreachBatch(doomed).start()
        return writer.format(job.writer).start(job.at("out"))

    return start


def arm(spark: SparkSession, job: Job, guard: sg.Guard) -> None:
    """Prepare the fault that the job asks for."""
    jvm: Any = spark._jvm
    # Python first: it would notice that its JVM is gone, and end by itself.
    pids = os.getpid(), jvm.java.lang.ProcessHandle.current().pid()
    Path(job.at("pids")).write_text("\n".join(map(str, pids)))
    if job.fault in ("before_flush", "after_flush"):
        guard.sinks["default"] = FaultSink(
            inner=guard.sinks["default"],
            marker=job.at("struck"),
            point=job.fault,  # type: ignore[arg-type]
            action="kill",
            pid_file=job.at("pids") if job.fault_kills == "driver" else None,
        )
    if job.fault == "committed":
        keep = guard._accounts.store

        def doomed(accounts: Any, **how: Any) -> None:
            if any(account.batch_id == job.fault_batch for account in accounts):
                die(job)
            keep(accounts, **how)

        guard._accounts.store = doomed  # type: ignore[method-assign]


def die(job: Job) -> None:
    """Kill the driver, its JVM first, if that did not happen before."""
    if not first_time(job.at("struck")):
        return
    for pid in reversed(Path(job.at("pids")).read_text().split()):
        os.kill(int(pid), signal.SIGKILL)


def main(path: str) -> None:
    """Run the job until it ends, and as the supervisor says."""
    job = msgspec.json.decode(Path(path).read_bytes(), type=Job)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    logging.getLogger("py4j").setLevel(logging.WARNING)
    # It lives for seconds: a JVM that optimises little is up sooner.
    options = f"{CONF['spark.driver.extraJavaOptions']} -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    conf = {"spark.driver.extraJavaOptions": options, **job.conf}
    spark = session(job.master, jars=bool(job.topic), **conf)
    guard = job.guard()
    arm(spark, job, guard)
    guard.run(build(spark, job, guard))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
