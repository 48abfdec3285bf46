"""Vectorised functions: one bad row is one letter, and the others are in the output in order."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import sparkguard as sg
from sparkguard.core.failure import Failure
from sparkguard.core.outcome import DeadLetter
from sparkguard.core.policy import Policy, Retry
from sparkguard.handlers.dead_letter import DeadLetterHandler
from tests.flow.made import Decides, ListSink, ManualTask, Ran, plan, policy, records, run


class Order(msgspec.Struct):
    id: int
    amount: float | None = 1.0


decode = sg.deserialize(sg.Json(Order), name="decode")
SCORES = "id long, score double"


def orders(count: int, bad: Any = (), no_json: Any = ()) -> list[bytes]:
    """Orders as JSON; bad ones have a negative amount."""
    return [
        b"{" if n in no_json else b'{"id": %d, "amount": %d}' % (n, -1 if n in bad else 2)
        for n in range(count)
    ]


class Counting:
    """Counts what a function is called with."""

    def __init__(self) -> None:
        self.sizes: list[int] = []


def scored(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The rule and the product, over columns."""
    amounts = batch.column("amount")
    if pc.any(pc.less(amounts, 0)).as_py():
        raise ValueError("a negative amount")
    return pa.RecordBatch.from_arrays(
        [batch.column("id"), pc.multiply(amounts, 2.0)], ["id", "score"]
    )


def go(stage: Any, values: list[bytes], *more: Any, **policies: Policy) -> Ran:
    """Orders through a decode and a vectorised stage."""
    made = plan(decode, stage, *more, policies=policies, sinks={"default": ListSink()})
    return run(made, records(values))


def holds(ran: Ran, count: int, bad: list[int]) -> None:
    """P6, P4: the bad rows are letters with their records, the good ones are there in order."""
    good = [n for n in range(count) if n not in set(bad)]
    assert ran.rows == [{"id": n, "score": 4.0} for n in good]
    assert [letter.record.offset for letter in ran.letters] == bad
    assert ran.account.balanced
    assert (ran.account.records_in, ran.account.total("dead_lettered")) == (count, len(bad))


@pytest.mark.parametrize("bad", [[], [0], [2999], [7, 8], [0, 1, 1500, 2998, 2999]])
def test_bad_rows_are_letters(bad: list[int]) -> None:
    """P6: a function over 3,000 rows raises because of some, and only those leave."""
    counting = Counting()

    @sg.map_batches(returns=SCORES)
    def score(batch: pa.RecordBatch) -> pa.RecordBatch:
        counting.sizes.append(batch.num_rows)
        return scored(batch)

    ran = go(score, orders(3000, bad))

    holds(ran, 3000, bad)
    assert counting.sizes[0] == 3000
    assert len(counting.sizes) <= 1 + 2 * len(bad) * 13
    for letter in ran.letters:
        assert letter.failure.stage == "score"
        assert letter.failure.message == "a negative amount"
        assert letter.record.value == b'{"id": %d, "amount": -1}' % (letter.record.offset or 0)


def test_bad_rows_of_two_stages() -> None:
    """P6: what does not parse has left before, and each letter has the right record."""

    @sg.map_batches(returns=SCORES)
    def score(batch: pa.RecordBatch) -> pa.RecordBatch:
        return scored(batch)

    ran = go(score, orders(500, bad=[3, 400], no_json=[2, 4, 401]))

    holds(ran, 500, [2, 4, 401, 3, 400])
    assert [letter.failure.stage for letter in ran.letters] == ["decode"] * 3 + ["score"] * 2


def test_pandas() -> None:
    """The annotation chooses the form; a DataFrame in and out, its index is nobody's business."""

    @sg.map_batches(returns=SCORES)
    def score(frame: pd.DataFrame) -> pd.DataFrame:
        if (frame["amount"] < 0).any():
            raise ValueError("a negative amount")
        frame["score"] = frame["amount"] * 2
        return frame[["score", "id"]].sample(frac=1, random_state=1).sort_index()

    holds(go(score, orders(1000, [5, 999])), 1000, [5, 999])


def test_the_function_names_its_bad_rows() -> None:
    """A function that knows its bad rows is called once, and each has its own exception."""
    counting = Counting()

    @sg.map_batches(returns=SCORES)
    def score(batch: pa.RecordBatch) -> pa.RecordBatch:
        counting.sizes.append(batch.num_rows)
        bad = [n for n, amount in enumerate(batch.column("amount").to_pylist()) if amount < 0]
        good = batch.filter(pc.greater_equal(batch.column("amount"), 0))
        raise sg.PartialFailure({n: ValueError(f"row {n}") for n in bad}, scored(good))

    ran = go(score, orders(100, [0, 50, 51, 99]))

    holds(ran, 100, [0, 50, 51, 99])
    assert counting.sizes == [100]
    assert [one.failure.message for one in ran.letters] == ["row 0", "row 50", "row 51", "row 99"]


def test_a_wrong_partial_failure() -> None:
    """P6: one that names rows that are not there, or gives other rows than the rest, is poison."""

    @sg.map_batches(returns=SCORES)
    def score(batch: pa.RecordBatch) -> pa.RecordBatch:
        if batch.num_rows > 1:
            raise sg.PartialFailure({batch.num_rows: ValueError()}, scored(batch))
        if batch.column("id")[0].as_py() == 3:
            raise sg.PartialFailure({0: ValueError("three")}, scored(batch))
        return scored(batch)

    ran = go(score, orders(8))

    holds(ran, 8, [3])
    assert "gave 1 rows for 0" in ran.letters[0].failure.message


def test_fewer_rows_than_promised() -> None:
    """P6: a function that drops a row has failed with it; nothing shifts to a neighbour."""

    @sg.map_batches(returns=SCORES)
    def score(batch: pa.RecordBatch) -> pa.RecordBatch:
        return scored(batch.filter(pc.not_equal(batch.column("id"), 42)))

    ran = go(score, orders(100))

    holds(ran, 100, [42])
    assert "gave 0 rows for 1; it must give one for each" in ran.letters[0].failure.message


def test_a_value_of_another_type() -> None:
    """P6: a value that its column does not take is its row's failure."""

    @sg.map_batches(returns="id long, score int not null")
    def score(batch: pa.RecordBatch) -> pa.RecordBatch:
        amounts = [None if n == 5 else 4.5 if n == 6 else 4.0 for n in batch["id"].to_pylist()]
        return pa.RecordBatch.from_arrays([batch["id"], pa.array(amounts)], ["id", "score"])

    ran = go(score, orders(10))

    assert [row["id"] for row in ran.rows] == [0, 1, 2, 3, 4, 7, 8, 9]
    assert [letter.record.offset for letter in ran.letters] == [5, 6]
    assert "'score' has a null" in ran.letters[0].failure.message


@pytest.mark.parametrize("given", ["no column", "another thing"])
def test_wrong_columns_are_the_codes_fault(given: str) -> None:
    """P10: what is wrong with every row is no row's fault; the query fails after one call."""
    counting = Counting()

    @sg.map_batches(returns=SCORES)
    def score(batch: pa.RecordBatch) -> Any:
        counting.sizes.append(batch.num_rows)
        return batch if given == "no column" else [1, 2]

    with pytest.raises(sg.StageFailedError, match="ColumnsError") as got:
        go(score, orders(50))

    assert got.value.facts["cause"] == "programming"
    assert counting.sizes == [50]


def test_an_outage_is_tried_again() -> None:
    """P7, P9: the rows that met an outage are tried again together, and none becomes a letter."""
    tries: list[int] = []

    @sg.map_batches(returns=SCORES)
    def score(batch: pa.RecordBatch) -> pa.RecordBatch:
        tries.append(batch.num_rows)
        if len(tries) < 4:
            raise ConnectionError("down")
        return scored(batch)

    ran = go(score, orders(100, [9]), score=policy(retry=Retry(initial=0.001)))

    holds(ran, 100, [9])
    assert tries[:4] == [100] * 4
    assert ran.account.stages["score"]["retries"] == 3


def test_an_outage_that_stays() -> None:
    """P9, P14: it asks for a restart, says how often it was tried, and no row is taken."""
    task = ManualTask()

    @sg.map_batches(returns=SCORES)
    def score(batch: pa.RecordBatch) -> pa.RecordBatch:
        raise ConnectionError("down")

    sink = ListSink()
    chosen = policy(retry=Retry(max_attempts=3, initial=0.001))
    made = plan(decode, score, policies={"score": chosen}, sinks={"default": sink})

    with pytest.raises(sg.StageFailedError, match="attempt 3") as got:
        run(made, records(orders(10)), task=task)

    assert got.value.action == "restart"
    assert not sink.written


def test_a_handler_may_take_the_rows_of_an_outage() -> None:
    """Whoever dead-letters outages gets each row of the call as a letter of its own."""

    @sg.map_batches(returns=SCORES)
    def score(batch: pa.RecordBatch) -> pa.RecordBatch:
        raise ConnectionError("down")

    chosen = policy(on_transient=DeadLetterHandler(), retry=Retry(max_attempts=2, initial=0.001))
    ran = go(score, orders(10), score=replace(chosen, budget=None))

    assert [letter.record.offset for letter in ran.letters] == list(range(10))
    assert {letter.failure.attempts for letter in ran.letters} == {2}
    assert ran.account.balanced


def test_too_many_bad_rows() -> None:
    """`isolate.max_calls` bounds the search; beyond it the stage fails, and says so."""
    counting = Counting()

    @sg.map_batches(returns=SCORES)
    def score(batch: pa.RecordBatch) -> pa.RecordBatch:
        counting.sizes.append(batch.num_rows)
        return scored(batch)

    chosen = replace(policy(), max_calls=20, budget=None)
    with pytest.raises(sg.StageFailedError, match=r"not found in 20 calls \(isolate.max_calls\)"):
        go(score, orders(1000, range(0, 1000, 50)), score=chosen)

    assert len(counting.sizes) == 20


def test_handlers_see_each_row() -> None:
    """The handler is asked for the bad row, with its record and its own exception."""
    seen: list[Failure] = []

    def decide(failure: Failure) -> DeadLetter:
        seen.append(failure)
        return DeadLetter()

    @sg.map_batches(returns=SCORES)
    def score(batch: pa.RecordBatch) -> pa.RecordBatch:
        return scored(batch)

    holds(go(score, orders(64, [13]), score=policy(Decides(decide))), 64, [13])
    assert [failure.record.offset for failure in seen] == [13]


def test_stages_behind_it() -> None:
    """What it gives is read as the next stage wants it; a filter in between reads and passes on."""

    class Score(msgspec.Struct):
        id: int
        score: float

    @sg.map_batches(returns=SCORES)
    def score(batch: pa.RecordBatch) -> pa.RecordBatch:
        return scored(batch)

    @sg.filter
    def even(row: dict[str, Any]) -> bool:
        return bool(row["id"] % 2 == 0)

    @sg.map_batches(returns="id long, score double")
    def half(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.set_column(1, "score", pc.divide(batch["score"], 2.0))

    @sg.map
    def rated(one: Score) -> Score:
        if one.id == 8:
            raise ValueError("eight")
        return Score(one.id, one.score + 0.5)

    ran = go(score, orders(10, [4]), even, half, rated)

    assert ran.rows == [{"id": n, "score": 2.5} for n in (0, 2, 6)]
    assert [letter.record.offset for letter in ran.letters] == [4, 8]
    assert ran.account.stages["even"]["filtered"] == 5
    assert ran.account.balanced


def test_a_record_in_several_rows_leaves_whole() -> None:
    """P6: behind a flat_map, one bad row of a record takes its siblings along: one letter."""

    @sg.flat_map
    def twice(order: Order) -> list[Order]:
        return [order, Order(order.id + 100, order.amount)]

    @sg.map_batches(returns=SCORES)
    def score(batch: pa.RecordBatch) -> pa.RecordBatch:
        if 103 in batch["id"].to_pylist():
            raise ValueError("one hundred and three")
        return scored(batch)

    made = plan(decode, twice, score, sinks={"default": ListSink()})
    ran = run(made, records(orders(5)))

    assert [row["id"] for row in ran.rows] == [0, 100, 1, 101, 2, 102, 4, 104]
    assert [letter.record.offset for letter in ran.letters] == [3]
    assert ran.account.balanced


def test_what_the_stage_before_gives_must_fit() -> None:
    """P6: a value that the stage before declares otherwise is that stage's failure."""

    @sg.map
    def odd(order: Order) -> Order:
        return Order(order.id, "text" if order.id == 1 else 2.0)  # type: ignore[arg-type]

    @sg.map_batches(returns=SCORES)
    def score(batch: pa.RecordBatch) -> pa.RecordBatch:
        return scored(batch)

    ran = go(odd, orders(3), score)

    holds(ran, 3, [1])
    assert ran.letters[0].failure.stage == "odd"


def test_no_rows_are_no_call() -> None:
    """An empty batch, or one of which nothing is left, is not given to the function."""

    @sg.map_batches(returns=SCORES)
    def score(batch: pa.RecordBatch) -> pa.RecordBatch:
        raise AssertionError("called")

    assert go(score, []).rows == []
    assert len(go(score, orders(2, no_json=[0, 1])).letters) == 2


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda f: sg.map_batches(f, returns=None), "say which columns it gives"),
        (lambda f: sg.map_batches(f, returns="long"), "gives columns: name them"),
    ],
)
def test_declared_wrongly(make: Any, sentence: str) -> None:
    """A stage that does not say its columns is refused before anything is read."""

    def score(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch

    with pytest.raises(sg.StageError, match=sentence):
        plan(decode, make(score))


def test_no_annotation() -> None:
    """Arrow or pandas is not guessed."""

    @sg.map_batches(returns=SCORES)
    def score(batch: Any) -> Any:
        return batch

    with pytest.raises(sg.StageError, match=r"annotate its parameter.*RecordBatch or pandas"):
        plan(decode, score)


def test_objects_without_a_type() -> None:
    """What a map_batches is to get as columns needs types."""

    @sg.map_batches(returns=SCORES)
    def score(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch

    with pytest.raises(sg.StageError, match="plain Python objects"):
        plan(sg.deserialize(sg.Json(), name="plain"), score)


def test_places_of_numpy() -> None:
    """P6, P9: numpy's whole numbers name rows, and an outage that is named is no dead letter."""

    @sg.map_batches(returns=SCORES)
    def score(batch: pa.RecordBatch) -> pa.RecordBatch:
        bad = np.flatnonzero(pc.less(batch["amount"], 0).to_numpy(zero_copy_only=False))
        good = batch.filter(pc.greater_equal(batch["amount"], 0))
        error = ConnectionError("away") if len(bad) == 1 else ValueError("negative")
        raise sg.PartialFailure(dict.fromkeys(bad, error), scored(good))

    holds(go(score, orders(16, [3, 7])), 16, [3, 7])
    retry = Retry(max_attempts=1)
    with pytest.raises(sg.StageFailedError) as caught:
        go(score, orders(16, [3]), score=replace(policy(), retry=retry))
    assert (caught.value.action, caught.value.facts["cause"]) == ("restart", "transient")


def test_all_of_them_failed() -> None:
    """P6: there is no result then, and none is asked for."""

    @sg.map_batches(returns=SCORES)
    def score(batch: pa.RecordBatch) -> pa.RecordBatch:
        raise sg.PartialFailure({n: ValueError("bad") for n in range(batch.num_rows)})

    holds(go(score, orders(4)), 4, [0, 1, 2, 3])


@pytest.mark.parametrize(
    "failed", [{0: "text"}, {0: ValueError}, {True: ValueError("x")}, {"0": ValueError("x")}]
)
def test_what_names_no_rows(failed: Any) -> None:
    """P10: what is wrong with a PartialFailure is wrong with the code, and no row's fault."""

    @sg.map_batches(returns=SCORES)
    def score(batch: pa.RecordBatch) -> pa.RecordBatch:
        raise sg.PartialFailure(failed, scored(batch))

    with pytest.raises(sg.StageFailedError, match="PartialFailure takes") as caught:
        go(score, orders(4))
    assert caught.value.facts["cause"] == "programming"


@pytest.mark.parametrize("made", ["mean", "head"])
def test_one_row_for_many(made: str) -> None:
    """A mean, or a head: each row alone would get through, and be wrong."""

    @sg.map_batches(returns=SCORES)
    def score(batch: pa.RecordBatch) -> pa.RecordBatch:
        scores = scored(batch)
        if made == "head":
            return scores.slice(0, 1)
        return pa.RecordBatch.from_pydict({"id": [0], "score": [pc.mean(scores["score"]).as_py()]})

    with pytest.raises(sg.StageFailedError, match="gave 1 rows for 16"):
        go(score, orders(16))


def test_long_ids_in_pandas() -> None:
    """A null beside it changes no whole number: pandas would make them floats."""

    @sg.map_batches(returns="id long")
    def score(frame: pd.DataFrame) -> pd.DataFrame:
        return frame[["id"]]

    made = plan(
        sg.deserialize(sg.Json("id long"), name="decode"), score, sinks={"default": ListSink()}
    )
    values = [b'{"id": 9007199254740993}', b"{}"]
    assert run(made, records(values)).rows == [{"id": 9007199254740993}, {"id": None}]


def test_two_columns_of_one_name() -> None:
    """P10: which one was meant is the code's business."""

    @sg.map_batches(returns=SCORES)
    def score(batch: pa.RecordBatch) -> pa.RecordBatch:
        made = scored(batch)
        return pa.RecordBatch.from_arrays([*made.columns, made["id"]], ["id", "score", "id"])

    with pytest.raises(sg.StageFailedError, match="several columns named 'id'"):
        go(score, orders(4))


def test_a_named_outage_after_a_retry() -> None:
    """P7: rows that are named are tried again, also where the batch was tried again before."""
    calls: list[int] = []

    @sg.map_batches(returns=SCORES)
    def score(batch: pa.RecordBatch) -> pa.RecordBatch:
        calls.append(batch.num_rows)
        if len(calls) == 1:
            raise ConnectionError("away")
        if len(calls) == 2:
            raise sg.PartialFailure({0: ConnectionError("still away")}, scored(batch.slice(1)))
        return scored(batch)

    assert len(go(score, orders(4)).rows) == 4
    assert calls == [4, 4, 1]


@pytest.mark.parametrize("pandas", [False, True])
@pytest.mark.parametrize(
    ("zone", "hour"), [("America/New_York", 17), ("UTC", 12), ("+02:00", 10), ("GMT-1", 13)]
)
def test_times_without_a_zone(pandas: bool, zone: str, hour: int) -> None:
    """They are the session's, as those of record stages are."""
    noon = datetime.fromisoformat("2026-01-02T12:00")

    @sg.map_batches(returns="at timestamp, plain timestamp_ntz")
    def arrow(batch: pa.RecordBatch) -> pa.RecordBatch:
        column = pa.array([noon] * batch.num_rows, pa.timestamp("us"))
        return pa.RecordBatch.from_arrays([column, column], ["at", "plain"])

    @sg.map_batches(returns="at timestamp, plain timestamp_ntz")
    def frames(frame: pd.DataFrame) -> pd.DataFrame:
        return pd.DataFrame({"at": [noon] * len(frame), "plain": [noon] * len(frame)})

    stage = frames if pandas else arrow
    made = plan(decode, stage, sinks={"default": ListSink()}, zone=zone)
    (row,) = run(made, records(orders(1))).rows
    assert row["plain"] == noon
    assert row["at"] == datetime(2026, 1, 2, hour, tzinfo=UTC)
