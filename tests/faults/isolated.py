"""A batch that one row poisons, in a process of its own: ``python -m tests.faults.isolated``.

Its batch function writes a file a range, and kills the driver at the calls that it is told.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

from pyspark.sql import DataFrame

import sparkguard as sg
from tests.spark.made import build, decode, guard, kafka_stream, price
from tests.support.spark import session

ROWS = 60
BAD = {7, 41}


def made(folder: Path) -> sg.Guard:
    """The guard of this job; any process may read its ledger."""
    return guard(folder, stages={"store": {"isolate": True, "writes": "upsert"}})


def main(root: str, before: str, after: str) -> None:
    """Run the query over all there is; die before this call, or after that write."""
    folder, one = Path(root), made(Path(root))
    calls = written = 0

    @sg.foreach_batch
    def store(batch: DataFrame, batch_id: int, rows: sg.SubBatch) -> None:
        nonlocal calls, written
        calls += 1
        if calls == int(before):
            os.kill(os.getpid(), signal.SIGKILL)
        if batch.where("total > 1e6").count():
            raise ValueError("the target refuses it")
        with (folder / "calls").open("a") as log:
            log.write(f"{rows.transaction}\n")
        part = rows.transaction.rpartition("/")[2]
        batch.write.mode("overwrite").parquet(f"{folder}/out/{part}")
        written += 1
        if written == int(after):
            os.kill(os.getpid(), signal.SIGKILL)

    lines = [json.dumps({"id": n, "amount": 1e9 if n in BAD else 1.0}) for n in range(ROWS)]
    source = kafka_stream(session(jars=False), folder, lines)
    guarded = source.transform(one.flow(decode, price, name="orders", carry=sg.ORIGIN))
    one.run(build(guarded, folder, one.foreach_batch(store)))


if __name__ == "__main__":
    main(*sys.argv[1:])
