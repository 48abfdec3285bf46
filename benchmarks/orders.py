"""The orders that every benchmark reads, and the functions that every side of it calls."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

import sparkguard as sg

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITIONS = 4
BYTES = 108
FIRST_ID = 10_000_000  # ids of one width, so that every order has the same size
COLUMNS = ("key", "value", "headers", "topic", "partition", "offset", "timestamp")


class Order(msgspec.Struct):
    """What is read of an order; two of its fields are not."""

    id: int
    customer: str
    amount: float
    currency: str


class Priced(msgspec.Struct):
    """An order with its price."""

    id: int
    customer: str
    total: float


class Shipped(msgspec.Struct):
    """A priced order with what its delivery costs."""

    id: int
    total: float
    shipping: float


class Message(msgspec.Struct):
    """A row for Kafka."""

    key: bytes
    value: bytes


class NegativeAmountError(ValueError):
    """The business rule that a few orders break."""


decode = sg.deserialize(sg.Json(Order), name="decode")


@sg.map
def price(order: Order) -> Priced:
    """One rule and one product."""
    if order.amount < 0:
        raise NegativeAmountError(f"order {order.id} has a negative amount")
    return Priced(order.id, order.customer, order.amount * 1.19)


@sg.map
def ship(priced: Priced) -> Shipped:
    """Delivery is free above a limit."""
    return Shipped(priced.id, priced.total, 0.0 if priced.total > 50 else 4.9)


_encode = msgspec.json.Encoder().encode


@sg.map
def message(priced: Priced) -> Message:
    """What goes to the output topic."""
    return Message(b"%d" % priced.id, _encode(priced))


def text(count: int, every: int = 0) -> Iterator[bytes]:
    """Orders of 108 bytes; of each `every` one is bad, by turns in syntax and by the rule."""
    for n in range(count):
        bad = every and n % every == 1
        amount = b"-9.99" if bad and n // every % 2 else b"%d.%02d" % (10 + n % 90, n % 97)
        value = (
            b'{"id":%d,"customer":"c-%07d","amount":%s,"currency":"EUR",'
            b'"at":"2025-01-01T12:00:00Z","lines":2}'
        ) % (FIRST_ID + n, n % 9973, amount)
        yield value[:60] if bad and not n // every % 2 else value


def batches(count: int, every: int = 0, size: int = 10_000) -> list[pa.RecordBatch]:
    """Orders as Spark hands them to a worker: rows of its Kafka source in Arrow batches."""
    values = list(text(count, every))
    made = []
    for start in range(0, count, size):
        part = values[start : start + size]
        rows = range(start, start + len(part))
        header = pa.struct([("key", pa.string()), ("value", pa.binary())])
        made.append(
            pa.RecordBatch.from_arrays(
                [
                    pa.array([b"%d" % (FIRST_ID + n) for n in rows]),
                    pa.array(part, pa.binary()),
                    pa.array(
                        [[{"key": "trace", "value": b"%016d" % n}] for n in rows], pa.list_(header)
                    ),
                    pa.array(["orders"] * len(part)),
                    pa.array([0] * len(part), pa.int32()),
                    pa.array(rows, pa.int64()),
                    pa.array(rows, pa.timestamp("us", tz="UTC")),
                ],
                list(COLUMNS),
            )
        )
    return made


def frame(spark: SparkSession, count: int, every: int = 0) -> DataFrame:
    """The same orders as rows with the columns of Spark's Kafka source; made by the JVM."""
    bad = f"id % {every} = 1" if every else "false"
    turn = f"int(id / {every}) % 2" if every else "0"
    amount = f"""if({bad} and {turn} = 1, '-9.99',
        concat(10 + id % 90, '.', lpad(id % 97, 2, '0')))"""
    value = f"""concat('{{"id":', {FIRST_ID} + id, ',"customer":"c-', lpad(id % 9973, 7, '0'),
        '","amount":', {amount}, ',"currency":"EUR","at":"2025-01-01T12:00:00Z","lines":2}}')"""
    return (
        spark.range(0, count, 1, PARTITIONS)
        .selectExpr("id", f"{value} whole")
        .selectExpr(
            f"cast(string({FIRST_ID} + id) as binary) key",
            f"cast(if({bad} and {turn} = 0, left(whole, 60), whole) as binary) value",
            "array(struct('trace' as key, cast(lpad(id, 16, '0') as binary) as value)) headers",
            "'orders' topic",
            "spark_partition_id() partition",
            f"id - spark_partition_id() * {count // PARTITIONS} offset",
            "timestamp_millis(1700000000000 + id) timestamp",
        )
    )
