"""Callables: what is behind a partial, a decorator or a callable object."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable
from typing import Any


def unwrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function behind partials, bound methods, decorators and callable objects."""
    while True:
        if isinstance(function, functools.partial):
            function = function.func
        elif isinstance(function, types.MethodType | staticmethod | classmethod):
            function = function.__func__
        elif hasattr(function, "__wrapped__"):
            function = function.__wrapped__
        elif isinstance(function, types.FunctionType | types.BuiltinFunctionType | type):
            return function
        else:
            called = type(function).__call__
            if not isinstance(called, types.FunctionType):
                return function
            function = called


def _layers(function: Any) -> list[Any]:
    layers = [function, unwrapped(function)]
    while hasattr(function, "__wrapped__") or isinstance(function, functools.partial):
        partial = isinstance(function, functools.partial)
        function = function.func if partial else function.__wrapped__
        layers.append(function)
    return [*layers, *(type(layer).__call__ for layer in layers)]


def is_generator(function: Callable[..., Any]) -> bool:
    """Whether calling it only makes a generator, also behind partials and callable objects."""
    return any(
        inspect.isgeneratorfunction(layer) or inspect.isasyncgenfunction(layer)
        for layer in _layers(function)
    )


def is_coroutine(function: Callable[..., Any]) -> bool:
    """Whether calling it only makes a coroutine, also behind partials and callable objects."""
    return any(
        inspect.iscoroutinefunction(layer) or inspect.isasyncgenfunction(layer)
        for layer in _layers(function)
    )
