"""The examples over files: what they leave behind is counted by ids."""

import sqlite3
from contextlib import closing
from pathlib import Path

from tests.examples.conftest import Ids, RunExample

LETTER_ID = r"""regexp_extract(decode(value), '"id": (\d+)', 1)::bigint"""


def test_first_steps(run_example: RunExample, ids: Ids) -> None:
    """P1: every line is in the output, in a letter, or filtered; a second run adds nothing."""
    printed = run_example("e01_first_steps/pipeline.py")
    assert "10 in = 6 out + 1 filtered + 0 skipped + 3 dead-lettered" in printed
    assert run_example("e01_first_steps/pipeline.py") == printed
    assert ids("out/*/*.parquet") == [1, 2, 3, 5, 8, 10]
    assert ids("dead-letters/**/*.parquet", LETTER_ID) == [4, 6, 7]


def test_policies(run_example: RunExample, ids: Ids) -> None:
    """P9, P18: routing follows stage, cause and exception; what is redacted is in no letter."""
    printed = run_example("e03_policies/pipeline.py")

    def every(*remainders: int) -> list[int]:
        return [number for number in range(500) if number % 50 in remainders]

    assert ids("unreadable/**/*.parquet", LETTER_ID) == every(7)
    assert ids("dead-letters/**/*.parquet", LETTER_ID) == every(22, 44)
    assert ids("out/*/*.parquet") == [n for n in range(500) if n not in every(7, 11, 22, 44)]
    assert "skipped 10, dead_lettered 20, failed_attempts 90, retries 60" in printed
    messages = ids("dead-letters/**/*.parquet", "message || trace")
    assert not [text for text in messages if "4111" in text]
    assert len([text for text in messages if "paid with ***" in text]) == 10
    assert set(ids("dead-letters/**/*.parquet", "(cause, attempts)::varchar")) == {
        "(poison, 1)",
        "(transient, 5)",
    }


def test_restart(run_example: RunExample, ids: Ids) -> None:
    """P9, P14: an outage costs restarts and no record; nothing is dead-lettered because of it."""
    printed = run_example("e04_restart/pipeline.py")
    assert "100 in = 100 out, after 5 failed calls" in printed
    assert ids("out/*/*.parquet") == list(range(100))


def test_restart_limit(run_example: RunExample, ids: Ids) -> None:
    """P14: used up, the limit ends the process with 75; a new process gets one start."""
    run_example("e04_restart/pipeline.py", code=75, OUTAGE="8")
    # Four starts of two tries each: the next process finds the service up again.
    run_example("e04_restart/pipeline.py", OUTAGE="8")
    assert ids("out/*/*.parquet") == list(range(100))


def test_map_batches(run_example: RunExample, ids: Ids) -> None:
    """P6: of thousands of rows in one pandas call three are bad, and only they are letters."""
    printed = run_example("e06_map_batches/pipeline.py")
    assert "5,000 in = 4,997 out + 3 dead-lettered" in printed
    assert ids("dead-letters/**/*.parquet", LETTER_ID) == [17, 2500, 2501]
    assert ids("out/*/*.parquet") == [n for n in range(5000) if n not in {17, 2500, 2501}]


def test_isolation(run_example: RunExample, ids: Ids, tmp_path: Path) -> None:
    """P6: a database refuses two rows of a batch; they are letters, and all others are in it."""
    printed = run_example("e08_isolation/pipeline.py")
    assert "400 in = 398 written + 2 dead-lettered" in printed
    row_id = LETTER_ID.replace('"id": ', '"id":')
    assert ids("dead-letters/**/*.parquet", row_id) == [17, 300]
    with closing(sqlite3.connect(tmp_path / "payments.db")) as database:
        found = database.execute("select id from payment order by id").fetchall()
    assert [row[0] for row in found] == [n for n in range(400) if n not in {17, 300}]


def test_demo(run_example: RunExample, ids: Ids, tmp_path: object) -> None:
    """The demo adds up, and says so; its exit code is its verdict."""
    folder = f"{tmp_path}/demo"
    printed = run_example("demo.py", "--count", "4000", "--folder", folder)
    assert "4,000 in = 3,760 out + 200 filtered + 0 skipped + 40 dead-lettered" in printed
    assert "WARN" not in printed
    letters = ids("demo/dead-letters/**/*.parquet", LETTER_ID)
    assert letters == [n for n in range(4000) if n % 200 in {7, 107}]
    assert len(ids("demo/out/*/*.parquet")) == 3760
