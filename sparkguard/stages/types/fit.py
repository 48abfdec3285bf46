"""Whether what one stage gives can be what the next takes."""

from __future__ import annotations

import types
import typing
from typing import Annotated, Any, Final, Literal, TypeVar, Union, get_args, get_origin

from sparkguard.core.shape import Kind
from sparkguard.stages.types.members import unaliased
from sparkguard.stages.types.read import shape_of

_TOWER: Final = {(bool, float), (bool, complex), (int, float), (int, complex), (float, complex)}
"""PEP 484: an int is welcome where a float is declared."""


def compatible(output: Any, input: Any) -> bool:
    """Whether values of `output` may be values of `input`: False only when surely not.

    Both are annotations; a DDL string or a StructType of columns stands for dicts.
    """
    outputs, inputs = _alternatives(output), _alternatives(input)
    if type(None) in outputs and len(outputs) > 1:
        outputs.remove(type(None))  # what becomes of None is the record's affair
    return any(_fits(one, other) for one in outputs for other in inputs)


def _alternatives(annotation: Any) -> list[Any]:
    annotation = unaliased(annotation)
    origin = get_origin(annotation)
    parts: tuple[Any, ...]
    if isinstance(annotation, TypeVar):
        parts = annotation.__constraints__ or (annotation.__bound__ or Any,)
    elif origin is Annotated:
        parts = get_args(annotation)[:1]
    elif origin in (Union, types.UnionType):
        parts = get_args(annotation)
    elif origin is Literal:
        return [type(value) for value in get_args(annotation)]
    else:
        return [type(None) if annotation is None else annotation]
    return [one for part in parts for one in _alternatives(part)]


def _fits(output: Any, input: Any) -> bool:
    if Any in (output, input) or input is object:
        return True
    given, taken = _class(output), _class(input)
    if given is None or taken is None:
        return True
    if (given, taken) in _TOWER:
        return True
    try:
        related = issubclass(given, taken) or issubclass(taken, given)
    except TypeError:  # a Protocol with data members says nothing without an instance
        return True
    if not related:
        return bool(getattr(taken, "_is_protocol", False))
    return _same_arguments(output, input)


def _same_arguments(output: Any, input: Any) -> bool:
    if get_origin(output) is None or get_origin(output) is not get_origin(input):
        return True
    given, taken = get_args(output), get_args(input)
    if len(given) != len(taken) or Ellipsis in (*given, *taken):
        return True
    return all(compatible(one, other) for one, other in zip(given, taken, strict=True))


def _class(annotation: Any) -> type | None:
    """The class of the values, or None where the annotation does not tell."""
    if isinstance(annotation, str) or hasattr(annotation, "jsonValue"):
        return None if not _has_columns(annotation) else dict
    origin = get_origin(annotation) or annotation
    if typing.is_typeddict(origin):
        return dict
    return origin if isinstance(origin, type) else None


def _has_columns(declared: Any) -> bool:
    return shape_of(declared).kind is Kind.STRUCT
