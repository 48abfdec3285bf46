"""Retry and routing through real Spark: what is tried again, who decides, and when it is enough."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

import sparkguard as sg
from tests.spark.made import (
    ROW,
    Order,
    Priced,
    build,
    committed,
    decode,
    failed,
    frame,
    guard,
    kafka_rows,
    letters,
    orders,
    price,
    stream,
    write,
)

QUICK = {"backoff": {"initial": "1ms", "max": "5ms"}}


class BusyError(ConnectionError):
    """The service says when to come back."""

    retry_after = 0.4


class UnpricedError(LookupError):
    """There is no price."""


class DearError(UnpricedError):
    """Of a kind of its own."""


def calls(file: Path) -> list[float]:
    """When a worker has called, by its own clock."""
    return [float(line) for line in file.read_text().splitlines()] if file.exists() else []


def flaky(file: Path, error: type[Exception], times: int) -> sg.Stage[[Order], Priced]:
    """A stage whose service fails so often for order 2, and then no more."""

    @sg.map
    def ask(order: Order) -> Priced:
        if order.id == 2:
            with file.open("a") as log:
                log.write(f"{time.monotonic()}\n")
            if len(file.read_text().splitlines()) <= times:
                raise error("no answer")
        return Priced(order.id, order.amount)

    return ask


def test_an_outage_that_passes(spark: SparkSession, tmp_path: Path) -> None:
    """P7, P9: it is tried again until it passes; no letter, and the tries are counted."""
    made = guard(tmp_path, defaults={"retry": QUICK})
    stage = flaky(tmp_path / "calls", ConnectionError, 3)

    out = frame(spark, orders(5)).transform(made.flow(decode, stage, name="orders")).collect()

    assert sorted(row.id for row in out) == [0, 1, 2, 3, 4]
    counts = made.ledger.total("orders").stages["ask"]
    assert (counts["failed_attempts"], counts["retries"]) == (3, 3)
    assert letters(tmp_path) == []


def test_when_the_service_says_when(spark: SparkSession, tmp_path: Path) -> None:
    """P7: a `retry_after` is waited for, whatever the back-off says."""
    made = guard(tmp_path, defaults={"retry": QUICK})
    stage = flaky(tmp_path / "calls", BusyError, 2)

    out = frame(spark, orders(5)).transform(made.flow(decode, stage, name="orders")).collect()

    first, second, third = calls(tmp_path / "calls")
    assert len(out) == 5
    assert second - first >= BusyError.retry_after
    assert third - second >= BusyError.retry_after


def test_an_outage_that_lasts(spark: SparkSession, tmp_path: Path) -> None:
    """P8, P9: used up, it asks for a restart, says so, and nothing is dead-lettered."""
    made = guard(tmp_path, defaults={"retry": QUICK, "task_timeout": "300ms"})
    stage = flaky(tmp_path / "calls", ConnectionError, 10_000)
    begun = time.monotonic()

    error = failed(frame(spark, orders(5)).transform(made.flow(decode, stage, name="orders")))

    assert (error.action, error.facts["cause"]) == ("restart", "transient")
    assert error.facts["attempts"] == len(calls(tmp_path / "calls")) > 5
    assert time.monotonic() - begun < 30
    assert letters(tmp_path) == []


def test_the_supervisor_heals_it(spark: SparkSession, tmp_path: Path) -> None:
    """P1, P14: what outlasts the retries is restarted, and each record is counted once."""
    made = guard(
        tmp_path,
        stages={"ask": {"retry": {"max_attempts": 2, **QUICK}}},
        restart={"backoff": {"initial": "10ms", "max": "20ms"}},
    )
    stage = flaky(tmp_path / "calls", ConnectionError, 3)
    guarded = stream(spark, tmp_path, orders(5, bad=[4]), orders(5)).transform(
        made.flow(decode, stage, name="orders")
    )

    made.run(build(guarded, tmp_path, made.foreach_batch(write(tmp_path))))

    assert committed(tmp_path) == [0, 1]
    total = made.ledger.total("orders")
    assert total.balanced
    assert (total.records_in, total.records_out) == (10, 9)
    assert spark.read.parquet(f"{tmp_path}/out/*").count() == 9
    assert [letter.record.value for letter in letters(tmp_path)] == [b'{"id": 4, ']


# --- who decides ----------------------------------------------------------------------------------


@sg.map
def ask(order: Order) -> Priced:
    """Fails in another way for each order."""
    failing = {1: UnpricedError("no price"), 2: DearError("too dear"), 3: KeyError("other")}
    if order.id in failing:
        raise failing[order.id]
    return Priced(order.id, 1.0)


def test_an_exception_chooses(spark: SparkSession, tmp_path: Path) -> None:
    """By exception: subclasses too, the most specific first; the rest goes the stage's way."""
    module = __name__
    made = guard(
        tmp_path,
        stages={
            "ask": {
                "by_exception": {
                    f"{module}.UnpricedError": "log_and_continue",
                    f"{module}.DearError": {"type": "dead_letter", "sink": "dear"},
                }
            }
        },
        sinks={
            "default": {"type": "file", "path": str(tmp_path / "dead")},
            "dear": {"type": "file", "path": str(tmp_path / "dear")},
        },
    )

    out = frame(spark, orders(5)).transform(made.flow(decode, ask, name="orders")).collect()

    assert sorted(row.id for row in out) == [0, 4]
    counts = made.ledger.total("orders").stages["ask"]
    assert (counts["skipped"], counts["dead_lettered"]) == (1, 2)
    assert [it.failure.exception_type for it in letters(tmp_path)] == ["KeyError"]
    (dear,) = letters(tmp_path, "dear")
    assert dear.failure.exception_types[:2] == (f"{module}.DearError", f"{module}.UnpricedError")


@pytest.mark.parametrize(
    ("cause", "action"), [("transient", "restart"), ("programming", "fail"), ("fatal", "fail")]
)
def test_settings_say_what_it_is(
    spark: SparkSession, tmp_path: Path, cause: str, action: str
) -> None:
    """P9, P10: `classify:` comes before what is built in, and the cause before the handler."""
    name = f"{__name__}.UnpricedError"
    stages = {"ask": {"classify": {cause: [name]}, "retry": {"max_attempts": 2, **QUICK}}}
    made = guard(tmp_path, stages=stages)

    error = failed(frame(spark, orders(2)).transform(made.flow(decode, ask, name="orders")))

    assert (error.facts["cause"], error.action) == (cause, action)
    assert error.facts["attempts"] == (2 if cause == "transient" else 1)


@sg.map
def present(order: Order | None) -> str:
    """Takes tombstones too."""
    return "gone" if order is None else str(order.id)


@sg.map
def identity(order: Order) -> Priced:
    """Takes no tombstones."""
    return Priced(order.id, order.amount)


TOMBSTONES: list[str | None] = ['{"id": 0}', None, '{"id": 2}', None]


@pytest.mark.parametrize(
    ("on_null", "stage", "rows", "fact"),
    [
        ("pass", present, ["0", "2", "gone", "gone"], ""),
        ("pass", identity, [0, 2], "dead_lettered"),
        ("skip", present, ["0", "2"], "skipped"),
        ("fail", present, ["0", "2"], "dead_lettered"),
    ],
    ids=["welcome", "unwelcome", "skipped", "failed"],
)
def test_tombstones(
    spark: SparkSession,
    tmp_path: Path,
    on_null: str,
    stage: Any,
    rows: list[Any],
    fact: str,
) -> None:
    """P1, P17: a null value passes on as None, is skipped, or is a letter with a null value."""
    made = guard(tmp_path, stages={"decode": {"on_null": on_null}})
    source = spark.createDataFrame(kafka_rows(TOMBSTONES), ROW)

    out = source.transform(made.flow(decode, stage, name="orders")).collect()

    assert sorted(row[0] for row in out) == rows
    total = made.ledger.total("orders")
    assert total.balanced
    assert {name for name, n in total.stages["decode"].items() if n == 2} == {fact} - {""} | (
        {"failed_attempts"} if fact == "dead_lettered" else set()
    )
    if fact == "dead_lettered":
        assert [(it.record.value, it.record.offset) for it in letters(tmp_path)] == [
            (None, 1),
            (None, 3),
        ]


# --- when it is enough ----------------------------------------------------------------------------


def test_a_task_over_its_budget(spark: SparkSession, tmp_path: Path) -> None:
    """P5: a task that fails too much ends at once, and drops nothing."""
    made = guard(tmp_path, stages={"price": {"budget": {"max_ratio": 0.1, "window": 100}}})
    values = frame(spark, orders(3_000, negative=range(1_000, 3_000)))

    error = failed(values.transform(made.flow(decode, price, name="orders")))

    assert error.action == "fail"
    assert "its budget is 0.1 of 100" in error.sentence
    assert "order 1" in error.sentence
    assert made.ledger.total("orders").records_in == 0


@pytest.mark.parametrize("then", ["fail", "restart"])
def test_batches_over_their_budget(spark: SparkSession, tmp_path: Path, then: str) -> None:
    """P5: the window spans batches, and the batch that exceeds it is not committed."""
    budget = {"max_ratio": 0.1, "window": 200, "then": then}
    made = guard(tmp_path, stages={"price": {"budget": budget}}, restart={"max_restarts": 0})
    batches = [orders(100, negative=range(9)) for _ in range(3)]
    batches[1] = orders(100, negative=range(18))
    guarded = stream(spark, tmp_path, *batches).transform(made.flow(decode, price, name="orders"))

    with pytest.raises(sg.RestartLimitError if then == "restart" else sg.StageFailedError) as got:
        made.run(build(guarded, tmp_path, made.foreach_batch(write(tmp_path))))

    assert "Stage 'price' failed 27 of its last 200 records" in str(got.value)
    assert committed(tmp_path) == [0]
    # Nothing was dropped: what failed in the batch that comes again is kept all the same.
    assert len(letters(tmp_path)) == 9 + 18


def test_a_budget_found_exceeded_behind_a_plain_sink(spark: SparkSession, tmp_path: Path) -> None:
    """P5: without a supervisor too the query fails, with the facts, soon after that commit."""
    budget = {"max_ratio": 0.1, "window": 100}
    made = guard(tmp_path, stages={"price": {"budget": budget}})
    batches = [orders(100, negative=range(18))] * 40
    guarded = stream(spark, tmp_path, *batches).transform(made.flow(decode, price, name="orders"))
    writer = guarded.writeStream.format("parquet").trigger(processingTime="1 second")
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.start(str(tmp_path / "out"))

    with pytest.raises(StreamingQueryException) as got:
        query.awaitTermination(60)

    found = sg.StageFailedError.find(str(got.value))
    assert found is not None
    assert (found.action, found.facts["reason"]) == ("fail", "budget")
    assert "Stage 'price' failed 18 of its last 100 records" in found.sentence
    assert len(committed(tmp_path)) < 40


# --- what is told ---------------------------------------------------------------------------------


def test_what_is_masked(spark: SparkSession, tmp_path: Path) -> None:
    """P18: `redact:` patterns hold for message and trace, and not for the record itself."""
    made = guard(tmp_path, redact=[r"\d{4}-\d{4}"])

    @sg.map
    def pay(order: Order) -> Priced:
        raise ValueError(f"card 1234-5678 of order {order.id}")

    frame(spark, orders(1)).transform(made.flow(decode, pay, name="orders")).collect()

    (letter,) = letters(tmp_path)
    assert letter.failure.message == "card *** of order 0"
    assert "1234" not in letter.failure.trace
    assert "***" in letter.failure.trace


def eavesdropped(file: Path) -> tuple[sg.Stage[..., Any], ...]:
    """Stages, between whose first and last record the worker's stderr goes to a file."""

    @sg.deserialize
    def read(value: bytes) -> Order:
        if b"first" in value:
            os.environ["HEARD"] = str(os.dup(2))
            with file.open("a") as log:
                os.dup2(log.fileno(), 2)
        return msgspec.json.decode(value, type=Order)

    @sg.map
    def leak(order: Order) -> Priced:
        if order.amount == 91827364:
            raise ValueError(f"amount {order.amount} of hunter{order.id}")
        return Priced(order.id, order.amount)

    @sg.map
    def restore(priced: Priced) -> Priced:
        # In a stage of its own: failures of the one before are told when that is through.
        if priced.id == -1:
            os.dup2(int(os.environ.pop("HEARD")), 2)
        return priced

    return read, leak, restore


def test_payloads_are_not_logged(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """P18, P20: stderr of the worker and log of the driver tell of it, without what is in it."""
    made = guard(tmp_path)
    lines = [
        '{"id": 0, "note": "first"}',
        '{"id": 2, "amount": 91827364}',
        '{"id": 3, "secret": "hunter',
        '{"id": -1}',
    ]
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "0.txt").write_text("\n".join(lines))
    flow = made.flow(*eavesdropped(tmp_path / "stderr"), name="orders")
    guarded = spark.readStream.text(str(tmp_path / "in")).transform(flow)

    with caplog.at_level(logging.DEBUG, "sparkguard"):
        made.run(build(guarded, tmp_path, made.foreach_batch(write(tmp_path))))

    assert len(letters(tmp_path)) == 2
    said = (tmp_path / "stderr").read_text()
    told = "\n".join(record.getMessage() for record in caplog.records)
    assert said.count("sparkguard.record_failed") == 2
    assert "sparkguard.batch_finished" in told
    for text in (said, told):
        assert "hunter" not in text
        assert "91827364" not in text
