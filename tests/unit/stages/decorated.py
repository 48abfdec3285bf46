"""Stages of an importable module that also holds a lock; imported by tests, here and in a child."""
# ruff: noqa: D103  written as users write

import functools
import threading
from collections.abc import Callable
from typing import Any

import msgspec

from sparkguard.formats.json import Json
from sparkguard.stages.deserialize import deserialize
from sparkguard.stages.map import map

LOCK = threading.Lock()


class Order(msgspec.Struct):
    id: int


@map
def price(order: Order) -> Order:
    """Price an order."""
    with LOCK:
        return Order(order.id + 1)


@map(name="renamed")
def other(order: Order) -> Order:
    with LOCK:
        return order


class Shop:
    @staticmethod
    @map
    def sell(order: Order) -> Order:
        with LOCK:
            return order


def loud(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def around(*args: Any) -> Any:
        with LOCK:
            return function(*args)

    return around


@map
@loud
def twice(order: Order) -> Order:
    with LOCK:
        return order


decode = deserialize(Json(Order), name="decode")
