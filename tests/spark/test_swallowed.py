"""A batch function that swallows the failure of a flow does not get its batch committed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

import sparkguard as sg
from tests.spark.made import Order, Priced, build, committed, decode, guard, orders, stream


@sg.map
def misspelt(order: Order) -> Priced:
    """The code is wrong, whatever the record."""
    return Prised(order.id)  # type: ignore[name-defined,no-any-return]  # noqa: F821


def run(spark: SparkSession, folder: Path, store: Callable[[DataFrame, int], None]) -> sg.Guard:
    """Run everything there is through the flow into `store`."""
    made = guard(folder)
    flow = made.flow(decode, misspelt, name="orders")
    guarded = stream(spark, folder, orders(5)).transform(flow)
    made.run(build(guarded, folder, made.foreach_batch(store)))
    return made


def test_swallowed_failure(spark: SparkSession, tmp_path: Path) -> None:
    """P1, P10: the function caught the action's exception, and the query fails all the same."""

    def store(batch: DataFrame, batch_id: int) -> None:
        try:
            batch.count()
        except Exception:
            return

    with pytest.raises(sg.StageFailedError, match="misspelt"):
        run(spark, tmp_path, store)
    assert committed(tmp_path) == []


def test_own_failure_may_be_swallowed(spark: SparkSession, tmp_path: Path) -> None:
    """An action of the function's own that fails is the function's business."""

    def store(batch: DataFrame, batch_id: int) -> None:
        try:
            batch.sparkSession.range(1).selectExpr("raise_error('own')").collect()
        except Exception:
            return

    made = run(spark, tmp_path, store)
    assert made.ledger.total("orders").records_in == 0


@sg.map
def strict(order: Order) -> Priced:
    """One order is not taken."""
    if order.id == 0:
        raise NameError("the code is wrong")
    return Priced(order.id, order.amount)


@pytest.mark.parametrize("again", [False, True])
def test_one_partition_of_two(spark: SparkSession, tmp_path: Path, again: bool) -> None:
    """P1: the other one's account is no excuse, unless the whole batch was evaluated again."""
    made = guard(tmp_path)
    flow = made.flow(decode, strict, name="orders")
    rows = stream(spark, tmp_path, orders(10)).repartitionByRange(2, "value").transform(flow)

    def store(batch: DataFrame, batch_id: int) -> None:
        for _ in range(2 if again else 1):
            with contextlib.suppress(Exception):
                batch.count()

    with pytest.raises(sg.StageFailedError, match="the code is wrong"):
        made.run(build(rows, tmp_path, made.foreach_batch(store)))
    assert committed(tmp_path) == []
