"""Records that end the process of the worker, or hang in it, are found and leave alone."""

from collections import Counter
from pathlib import Path
from typing import Any

import duckdb
import pytest
from pyspark.sql import SparkSession

import sparkguard as sg
from tests.faults.harness import (
    Counted,
    Running,
    Supervised,
    fill_folder,
    fill_topic,
    letter_files,
    values,
)
from tests.faults.job import Job
from tests.support.kafka import Broker

AT_ONCE: dict[str, Any] = {"max_restarts": 5, "backoff": {"initial": "10ms"}}
CRASH = "sparkguard.errors.WorkerCrashError"
KILLERS = {"segfault": [700], "exit_always": [1500, 1501]}


def settings(**price: Any) -> dict[str, Any]:
    """Restarts without a wait, and these for the stage that meets the killers."""
    return {"restart": AT_ONCE, "stages": {"price": price}}


def letters(job: Job) -> dict[bytes, tuple[str, str, str, str]]:
    """By value: stage, cause, exception and message; each id once."""
    found = duckdb.execute(
        "select any_value(value), any_value(stage), any_value(cause), any_value(exception_type), "
        f"any_value(message) from '{job.at('dead')}/**/*.parquet' group by id"
    ).fetchall()
    assert len({row[0] for row in found}) == len(found)
    return {bytes(row[0]): row[1:] for row in found}


def holds(job: Job, lines: list[bytes], killers: dict[int, str]) -> None:
    """P1, P3, P4: every record is in one place, killers among the letters, the ledger exact."""
    counted = Counted(job)
    bad = {n for n in range(len(lines)) if n % 100 in {7, 13}} | killers.keys()
    small = {n for n in range(len(lines)) if n % 10 == 5} - bad
    assert sorted(counted.out) == sorted(set(range(len(lines))) - bad - small)
    assert Counter(counted.letters.values()) == Counter(lines[n] for n in bad)
    told = letters(job)
    assert {n: told[lines[n]][2] for n in killers} == killers
    total = counted.total
    assert (total.records_in, total.records_out) == (len(lines), len(counted.out))
    assert (total.total("filtered"), total.total("dead_lettered")) == (len(small), len(bad))
    assert total.balanced


def test_the_killers_are_letters(spark: SparkSession, tmp_path: Path) -> None:
    """P1, P3, P4, P6: a restart a batch, and each record that ends its process is one letter."""
    job = Job(root=str(tmp_path), settings=settings(on_crash="dead_letter"))
    lines = values(3000, **KILLERS)
    fill_folder(job, lines, files=2)
    running = Supervised(spark, job)

    running.ended()

    assert running.starts == 1 + 2
    holds(job, lines, dict.fromkeys([700, 1500, 1501], CRASH))
    told = letters(job)
    stage, cause, _, message = told[lines[700]]
    assert (stage, cause) == ("price", "fatal")
    assert "killed by SIGSEGV" in message
    assert "exited with code 3" in told[lines[1500]][3]
    # Care ends with the first batch that is committed.
    assert not list(Path(job.at("state/breaches")).glob("*.json"))


def test_the_next_attempt_is_careful(tmp_path: Path) -> None:
    """P1, P3, P4, P6: where Spark tries a task again, no query ends for the killers."""
    price = settings(on_crash="dead_letter")
    job = Job(root=str(tmp_path), master="local[2,4]", settings=price)
    lines = values(3000, **KILLERS)
    fill_folder(job, lines, files=2)

    running = Running(job)

    assert running.ended() == 0, running.said()
    assert "restart_scheduled" not in running.said()
    holds(job, lines, dict.fromkeys([700, 1500, 1501], CRASH))


def test_unsaid_the_query_fails(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    """P1: the message names the stage and where the killer lies; nothing is lost, none skipped."""
    topic = "killers"
    broker.create_topic(topic, 2)
    job = Job(root=str(tmp_path), servers=broker.servers, topic=topic, settings=settings())
    lines = values(2500, segfault=[1501])
    fill_topic(broker, topic, lines, partitions=2)
    running = Supervised(spark, job)

    with pytest.raises(sg.StageFailedError, match="killed by SIGSEGV") as raised:
        running.ended()

    assert running.starts == 2
    assert "Stage 'price' of flow 'orders' failed at killers[1]@750" in str(raised.value)
    facts = raised.value.facts
    assert (facts["cause"], facts["topic"], facts["partition"], facts["offset"]) == (
        "fatal",
        topic,
        1,
        750,
    )


def test_a_hang_is_a_letter(spark: SparkSession, tmp_path: Path) -> None:
    """P1, P4, P8: what waits is interrupted; what holds the interpreter is found as a killer."""
    price = settings(on_crash="dead_letter", record_timeout="1s", retry={"max_attempts": 1})
    price["stages"]["price"]["classify"] = {"poison": ["sparkguard.errors.RecordTimeoutError"]}
    job = Job(root=str(tmp_path), settings=price)
    lines = values(2000, sleep=[300], hold=[1500])
    fill_folder(job, lines, files=2)
    running = Supervised(spark, job)

    running.ended()

    assert running.starts == 1 + 1
    holds(job, lines, {300: "sparkguard.errors.RecordTimeoutError", 1500: CRASH})
    assert "hung" in letters(job)[lines[1500]][3]


def test_a_hang_is_an_outage(spark: SparkSession, tmp_path: Path) -> None:
    """P9, P14: unsaid, a record that takes too long is nobody's letter: the query restarts."""
    price = settings(record_timeout="500ms", retry={"max_attempts": 1})
    price["restart"] = {**AT_ONCE, "max_restarts": 1}
    job = Job(root=str(tmp_path), settings=price)
    fill_folder(job, values(1000, sleep=[300]), files=1)
    running = Supervised(spark, job)

    with pytest.raises(sg.RestartLimitError, match=r"took longer than 0\.5 s"):
        running.ended()

    assert running.starts == 2
    assert not letter_files(job)
