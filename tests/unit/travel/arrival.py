"""Unpickles in a fresh process what definitions.py made, uses it, prints what it saw."""
# ruff: noqa: D103  each function is one line of what is printed

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from sparkguard.pickling import dumps, loads

things = loads(Path(sys.argv[1]).read_bytes())
Order, Child, Node, Color = (things[name] for name in ("Order", "Child", "Node", "Color"))
read = msgspec.json.Decoder(Order).decode


def raised(call: Callable[..., Any], *args: Any) -> str:
    try:
        call(*args)
    except Exception as error:
        return f"{type(error).__module__}.{type(error).__name__}: {error}"
    return "nothing"


def struct() -> Any:
    order = read(b'{"t":"o","orderId":1,"amount":2.5,"color":"blue","NODES":{"a":{"value":1}}}')
    return [
        [order.order_id, order.amount, order.color.name, order.node.value, order.tags],
        [order.nodes["a"].value, order.twice(), order.half, Order.zero().amount, Order.kind],
        [
            Order.own() is Order,
            Order.__doc__,
            type(order.node) is Node,
            order < read(b'{"t":"o","orderId":1,"amount":3}'),
        ],
        raised(read, b'{"t":"o","orderId":1,"amount":1,"zz":1}'),
        raised(read, b'{"t":"o","amount":1}'),
        raised(read, b'{"t":"x","orderId":1,"amount":1}'),
        raised(setattr, order, "amount", 1),
        raised(Order, 1, 2.0),
        msgspec.json.encode(Order(1.0, order_id=1)).decode(),
    ]


def subclass() -> Any:
    child = msgspec.json.decode(b'{"t":"o","orderId":1,"amount":2.5}', type=Child)
    return [child.twice(), isinstance(child, Order)]


def generic() -> Any:
    return type(msgspec.json.decode(b'[{"value":1}]', type=things["BoxOfNode"]).item) is Node


def dataclass() -> Any:
    made = msgspec.json.decode(b'{"id":1,"node":{"value":1}}', type=things["Data"])
    return [type(made.node) is Node, made.nodes, made.note, made == things["Data"](1, Node(1))]


def others() -> Any:
    return [
        msgspec.json.decode(b'{"id":1}', type=things["Dict"]),
        msgspec.json.decode(b'{"id":1,"node":{"value":3}}', type=things["Dict"])["node"].value,
        list(msgspec.json.decode(b'[1,"red"]', type=things["Pair"]))[1] is Color.RED,
    ]


def enum() -> Any:
    return [Color("red") is Color.RED, Color.RED.orders() is Order, [one.name for one in Color]]


def pydantic() -> Any:
    model = things["Model"]
    made = model.model_validate_json(b'{"id":1,"sub":{"id":2}}')
    wrong = raised(model.model_validate_json, b'{"id":-1}')
    return [made.color is Color.RED, made.sub.id, "id is negative" in wrong]


def exception() -> Any:
    try:
        things["price"](read(b'{"t":"o","orderId":1,"amount":3}'))
    except things["Unpriced"] as error:
        return [
            type(error).__module__,
            type(error).__qualname__.split(".")[-1],
            error.amount,
            str(error),
        ]
    return None


def identity() -> Any:
    again = loads(dumps(things))
    same = [name for name in things if name != "instance" and again[name] == things[name]]
    return [
        type(things["instance"]) is Order,
        len(same) >= len(things) - 2,
        again["Order"] is Order,
    ]


checks = (struct, subclass, generic, dataclass, others, enum, pydantic, exception, identity)
print(json.dumps({check.__name__: check() for check in checks}))  # noqa: T201
