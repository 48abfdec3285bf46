"""Redrive: letters from files to a topic, noted chunk by chunk, against what is promised."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from benchmarks import orders
from benchmarks.bench import Bench
from benchmarks.compare import Claim, Row
from sparkguard.deadletters.selection import Selection
from sparkguard.deadletters.store import Store
from sparkguard.redrive.fates import Rules
from sparkguard.redrive.redrive import Redrive
from sparkguard.redrive.sending import Target
from sparkguard.sinks.base import SinkTask
from sparkguard.sinks.file import FileSink
from sparkguard.testing import sample_letters

PROMISED = 20_000
PART = 10  # a tenth of the records is one redrive
CLAIM = Claim("redrive", f"{PROMISED:,} letters a second / letters redriven a second", 1.0)


def redriven(bench: Bench) -> list[Row]:
    """From choosing the letters to the last acknowledgement (100,000 unless asked otherwise)."""
    letters = max(bench.records // PART, PROMISED)
    sink = FileSink(path=str(bench.fresh("letters")))
    _fill(sink, letters)
    rates = [letters / _seconds(bench, sink) for _ in range(max(3, bench.rounds // 2))]
    return [
        Row(
            claim=CLAIM,
            ratios=[PROMISED / rate for rate in rates],
            facts={"letters": letters, "letters/s": sorted(rates)[len(rates) // 2]},
        )
    ]


def _fill(sink: FileSink, letters: int) -> None:
    model = sample_letters()[0]
    writer = sink.open(SinkTask(app="benchmark"))
    for number in range(letters):
        record = replace(
            model.record,
            key=b"%d" % (number % 1_000),
            value=b'{"id": "%09d", "note": "%s"}' % (number, b"x" * 80),
            headers=(("trace-id", b"%016x" % number),),
            topic="orders",
            partition=number % orders.PARTITIONS,
            offset=number,
        )
        failure = replace(model.failure, record=record)
        writer.write(replace(model, id=f"{number:032x}", failure=failure))
    writer.flush()


def _seconds(bench: Bench, sink: FileSink) -> float:
    bench.tell("redrive")
    topic = bench.broker.create_topic(bench.fresh("redriven").name, orders.PARTITIONS)
    state: Path = bench.fresh("state")
    sinks = {"default": sink}
    try:
        with Store(sinks, state=str(state)) as store:
            began = time.monotonic()
            target = Target(servers=bench.broker.servers, topic=topic)
            Redrive(str(state), target, Rules(), sinks).start(store, Selection())
            return time.monotonic() - began
    finally:
        bench.broker.delete_topic(topic)
