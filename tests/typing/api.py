"""What a type checker sees of the front door's decorators; read by mypy, never run."""
# ruff: noqa: D103  the functions are there to be read by a type checker

from collections.abc import Iterator
from typing import Any, assert_type

import msgspec

from sparkguard.core.record import Record
from sparkguard.core.update import KEEP, Keep, Update
from sparkguard.formats.json import Json
from sparkguard.formats.raw import Raw
from sparkguard.formats.text import Text
from sparkguard.stages.base import Stage
from sparkguard.stages.deserialize import deserialize
from sparkguard.stages.filter import filter
from sparkguard.stages.flat_map import flat_map
from sparkguard.stages.foreach_batch import foreach_batch
from sparkguard.stages.map import map
from sparkguard.stages.stateful import stateful


class Order(msgspec.Struct):
    id: int


class Priced(msgspec.Struct):
    id: int
    amount: float


decode = deserialize(Json(Order), name="decode")
assert_type(decode, Stage[[bytes], Order])
assert_type(decode(b"{}"), Order)
assert_type(deserialize(Json("id long")), Stage[[bytes], dict[str, Any]])
assert_type(deserialize(Json()), Stage[[bytes], Any])
assert_type(deserialize(Text()), Stage[[bytes], str])
assert_type(deserialize(Raw()), Stage[[bytes], bytes])


@deserialize
def own(value: bytes) -> Order:
    return Order(len(value))


@deserialize(name="other", returns="id long")
def own_named(value: bytes) -> Order:
    return Order(len(value))


@map
def price(order: Order) -> Priced:
    return Priced(order.id, 1.0)


@map(name="with_record", returns="id long, amount double")
def with_record(order: Order, record: Record) -> Priced:
    return Priced(order.id, float(record.offset or 0))


@flat_map(partial=True)
def lines(order: Order) -> Iterator[Priced]:
    yield Priced(order.id, 1.0)


@filter
def worth_it(priced: Priced) -> bool:
    return priced.amount > 0


@filter(name="cheap")
def is_cheap(priced: Priced) -> bool:
    return priced.amount < 1


@foreach_batch
def store(batch: Any, batch_id: int) -> None: ...


@foreach_batch(name="other_store")
def other_store(batch: Any, batch_id: int) -> None: ...


@stateful(key="id", state=Priced)
def spent(state: Priced | None, order: Order) -> Update[Priced, Order]:
    if state is None:
        return Update(state=KEEP, emit=[order])
    return Update(state=state, emit=[order])


assert_type(own(b""), Order)
assert_type(own_named(b""), Order)
assert_type(price(Order(1)), Priced)
assert_type(price(order=Order(1)), Priced)
assert_type(with_record(Order(1), Record()), Priced)
assert_type(lines(Order(1)), Iterator[Priced])
assert_type(worth_it(Priced(1, 1.0)), bool)
assert_type(is_cheap(Priced(1, 1.0)), bool)
store(None, 1)
other_store(None, batch_id=1)

assert_type(spent(None, Order(1)), Update[Priced, Order])
assert_type(spent(None, Order(1)).state, Priced | Keep | None)

price("x")  # type: ignore[arg-type]
spent(Order(1), Order(1))  # type: ignore[arg-type]
price(Order(1), 2)  # type: ignore[call-arg]
store(None, "x")  # type: ignore[arg-type]
deserialize(Json(Order), partial=True)  # type: ignore[call-overload]
