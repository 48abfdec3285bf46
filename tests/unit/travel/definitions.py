# ruff: noqa: D103, N818  written as users write
# What a user's script defines; test_pickling runs it as __main__, as a cell, and in a function.
import enum
import threading
from dataclasses import dataclass, field
from typing import ClassVar, Generic, NamedTuple, NotRequired, TypedDict, TypeVar

import msgspec
import pydantic

T = TypeVar("T")
LOCK = threading.Lock()


class Unpriced(Exception):
    def __init__(self, amount: float) -> None:
        self.amount = amount
        super().__init__(f"no price for {amount}")


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"

    def orders(self) -> type:
        return Order


class Node(msgspec.Struct):
    value: int
    color: Color = Color.RED


class Base(msgspec.Struct, kw_only=True, rename="camel", frozen=True):
    order_id: int


def fresh() -> Node:
    return Node(value=7)


class Order(Base, frozen=True, order=True, tag="o", tag_field="t", forbid_unknown_fields=True):
    """An order."""

    kind: ClassVar[str] = "order"
    amount: float
    color: Color = Color.RED
    node: Node = msgspec.field(default_factory=fresh)
    tags: list[str] = []
    nodes: dict[str, Node] = msgspec.field(default_factory=dict, name="NODES")

    def __post_init__(self) -> None:
        if self.amount < 0:
            raise Unpriced(self.amount)

    def twice(self) -> float:
        return self.amount * 2

    @property
    def half(self) -> float:
        return self.amount / 2

    @classmethod
    def zero(cls) -> "Order":
        return cls(order_id=0, amount=0.0)

    @staticmethod
    def own() -> type:
        return Order


class Child(Order, frozen=True):
    def twice(self) -> float:
        return super().twice() + 1


class Box(msgspec.Struct, Generic[T], array_like=True):
    item: T


@dataclass
class Data:
    id: int
    node: Node
    nodes: list[Node] = field(default_factory=list)
    note: str = "none"


class Dict(TypedDict):
    id: int
    node: NotRequired[Node]


class Pair(NamedTuple):
    id: int
    color: Color


class Sub(pydantic.BaseModel):
    id: int


class Model(pydantic.BaseModel):
    id: int
    color: Color = Color.RED
    sub: Sub | None = None

    @pydantic.field_validator("id")
    @classmethod
    def _positive(cls, value: int) -> int:
        if value < 0:
            raise ValueError("id is negative")
        return value


def price(order: Order) -> Order:
    raise Unpriced(order.amount)


EXPORTED = {
    "Order": Order,
    "Child": Child,
    "Color": Color,
    "Node": Node,
    "BoxOfNode": Box[Node],
    "Data": Data,
    "Dict": Dict,
    "Pair": Pair,
    "Model": Model,
    "Unpriced": Unpriced,
    "price": price,
    "instance": Order(order_id=1, amount=2.0),
}
