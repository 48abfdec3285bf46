"""The same work as a competent engineer writes it by hand, without sparkguard."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from benchmarks.orders import (
    COLUMNS,
    Message,
    NegativeAmountError,
    Order,
    Priced,
    message,
    price,
    ship,
)

PRICED = "id long, customer string, total double"
SHIPPED = "id long, total double, shipping double"
MESSAGE = "key binary, value binary"
ORDER = "id long, customer string, amount double, currency string"

# What is called for each record is the plain function: a stage is not in the way of a peer.
price_order = price.__wrapped__  # type: ignore[attr-defined]
ship_order = ship.__wrapped__  # type: ignore[attr-defined]
make_message = message.__wrapped__  # type: ignore[attr-defined]


# --- one pass -----------------------------------------------------------------------------------


def bare(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Decode and price in one `mapInArrow`; one bad order fails the job."""
    decode = msgspec.json.Decoder(Order).decode
    for batch in batches:
        values = batch.column("value").to_pylist()
        yield _priced([price_order(decode(value)) for value in values])


def _priced(priced: list[Priced]) -> pa.RecordBatch:
    columns = [
        pa.array([one.id for one in priced], pa.int64()),
        pa.array([one.customer for one in priced], pa.string()),
        pa.array([one.total for one in priced], pa.float64()),
    ]
    return pa.RecordBatch.from_arrays(columns, ["id", "customer", "total"])


# --- three passes -------------------------------------------------------------------------------


def decode_pass(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The first of three chained passes."""
    decode = msgspec.json.Decoder(Order).decode
    for batch in batches:
        orders = [decode(value) for value in batch.column("value").to_pylist()]
        columns = [
            pa.array([one.id for one in orders], pa.int64()),
            pa.array([one.customer for one in orders], pa.string()),
            pa.array([one.amount for one in orders], pa.float64()),
            pa.array([one.currency for one in orders], pa.string()),
        ]
        yield pa.RecordBatch.from_arrays(columns, ["id", "customer", "amount", "currency"])


def price_pass(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The second: the orders are made again of their columns."""
    for batch in batches:
        yield _priced([price_order(order) for order in _objects(Order, batch)])


def ship_pass(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The third."""
    for batch in batches:
        shipped = [ship_order(priced) for priced in _objects(Priced, batch)]
        columns = [
            pa.array([one.id for one in shipped], pa.int64()),
            pa.array([one.total for one in shipped], pa.float64()),
            pa.array([one.shipping for one in shipped], pa.float64()),
        ]
        yield pa.RecordBatch.from_arrays(columns, ["id", "total", "shipping"])


def chained(frame: DataFrame) -> DataFrame:
    """One function a pass, three passes."""
    decoded = frame.mapInArrow(decode_pass, ORDER)
    return decoded.mapInArrow(price_pass, PRICED).mapInArrow(ship_pass, SHIPPED)


def _objects(cls: Any, batch: pa.RecordBatch) -> Iterator[Any]:
    return map(cls, *(column.to_pylist() for column in batch.columns))


# --- two writes ---------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def _decode() -> Any:
    return msgspec.json.Decoder(Order).decode


def tried_usual(value: bytes) -> tuple[Any, str | None]:
    """The row-UDF that people write: what came out, or what went wrong."""
    try:
        order = json.loads(value)
        if order["amount"] < 0:
            raise NegativeAmountError(f"order {order['id']} has a negative amount")
        return (order["id"], order["customer"], order["amount"] * 1.19), None
    except Exception as error:
        return None, f"{type(error).__name__}: {error}"


def tried(value: bytes) -> tuple[Any, str | None]:
    """The same with the functions that the guarded flow calls."""
    try:
        priced = price_order(_decode()(value))
    except Exception as error:
        return None, f"{type(error).__name__}: {error}"
    return (priced.id, priced.customer, priced.total), None


def row_udf(
    function: Callable[[bytes], object], frame: DataFrame
) -> tuple[DataFrame, DataFrame, DataFrame]:
    """What is persisted, and the good and the bad rows of it."""
    return _split(frame, function, "id:bigint,customer:string,total:double")


def _split(
    frame: DataFrame, function: Callable[[bytes], object], result: str
) -> tuple[DataFrame, DataFrame, DataFrame]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # hints say nothing of a type that is given beside them
        called = f.udf(function, f"result struct<{result}>, error string")
    both = frame.withColumn("tried", called("value")).persist()
    good = both.where("tried.error is null").select("tried.result.*")
    bad = both.where("tried.error is not null").select(*COLUMNS, "tried.error")
    return both, good, bad


def from_json(frame: DataFrame) -> tuple[DataFrame, DataFrame, DataFrame]:
    """The same without Python: Spark's parser, and the rule in SQL."""
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "corrupt"}
    order = f.from_json(f.col("value").cast("string"), f"{ORDER}, corrupt string", options)
    error = """case when order.corrupt is not null then 'it does not parse'
                    when order.amount < 0 then 'it has a negative amount' end"""
    both = frame.withColumn("order", order).withColumn("error", f.expr(error)).persist()
    good = both.where("error is null").selectExpr(
        "order.id", "order.customer", "order.amount * 1.19 total"
    )
    bad = both.where("error is not null").select(*COLUMNS, "error")
    return both, good, bad


# --- Kafka --------------------------------------------------------------------------------------


def tried_message(value: bytes) -> tuple[Any, str | None]:
    """The row-UDF with a row for Kafka."""
    try:
        made = make_message(price_order(_decode()(value)))
    except Exception as error:
        return None, f"{type(error).__name__}: {error}"
    return (made.key, made.value), None


def row_udf_messages(frame: DataFrame) -> tuple[DataFrame, DataFrame, DataFrame]:
    """What is persisted, and the good and the bad rows of it, for Kafka."""
    return _split(frame, tried_message, "key:binary,value:binary")


class KafkaPass:
    """One pass that sends bad records to a topic by itself, and waits for their acknowledgement."""

    def __init__(self, servers: str, topic: str) -> None:
        self._servers = servers
        self._topic = topic

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """A task."""
        decode = msgspec.json.Decoder(Order).decode
        producer, refused = _producer(self._servers), []

        def reported(error: Any, _: Any) -> None:
            if error is not None:
                refused.append(error)

        for batch in batches:
            made: list[Message] = []
            for row, value in enumerate(batch.column("value").to_pylist()):
                try:
                    made.append(make_message(price_order(decode(value))))
                except Exception as error:
                    producer.produce(
                        self._topic, on_delivery=reported, **_letter(batch, row, error)
                    )
                    producer.poll(0)
            columns = [
                pa.array([one.key for one in made], pa.binary()),
                pa.array([one.value for one in made], pa.binary()),
            ]
            yield pa.RecordBatch.from_arrays(columns, ["key", "value"])
        if producer.flush(60) or refused:
            raise RuntimeError(f"dead letters were not stored: {refused[:1]}")


@lru_cache(maxsize=1)
def _producer(servers: str) -> Any:
    from confluent_kafka import Producer

    settings = {"enable.idempotence": True, "linger.ms": 5, "partitioner": "murmur2_random"}
    return Producer({"bootstrap.servers": servers, **settings})


def _letter(batch: pa.RecordBatch, row: int, error: Exception) -> dict[str, Any]:
    it = {name: batch.column(name)[row].as_py() for name in COLUMNS}
    facts = {
        "topic": it["topic"],
        "partition": str(it["partition"]),
        "offset": str(it["offset"]),
        "exception": type(error).__name__,
        "message": str(error),
    }
    headers = [(header["key"], header["value"]) for header in it["headers"] or ()]
    headers += [(f"error.{name}", fact.encode()) for name, fact in facts.items()]
    return {"key": it["key"], "value": it["value"], "headers": headers}
