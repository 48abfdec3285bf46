"""The members of a class: the fields that a struct of Spark gets from it."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NewType, NotRequired, Required, TypeVar, get_args, get_origin

from sparkguard.core.shape import Take


@dataclass(frozen=True, slots=True)
class Member:
    """One field of a class, its type variables resolved."""

    name: str
    annotation: Any
    required: bool = True


@dataclass(frozen=True, slots=True)
class Members:
    """The fields of a class, and how they are taken out of its instances."""

    take: Take
    members: tuple[Member, ...]


_QUALIFIERS: Final = {Required: True, NotRequired: False}


def members_of(annotation: Any) -> Members | None:
    """The fields of a class or a parametrised generic of one; None where it has none to speak of.

    Raises:
        NameError: an annotation in the class cannot be resolved.
    """
    cls = get_origin(annotation) or annotation
    if not isinstance(cls, type):
        return None
    if typing.is_typeddict(cls):
        return _typed_dict(cls, annotation)
    names = _names(cls)
    if names is None:
        return None
    if hasattr(cls, "model_fields"):  # pydantic has resolved them when it made the class
        fields = cls.model_fields
        return Members(Take.ATTRIBUTE, tuple(Member(n, _pydantic(fields[n])) for n in names))
    hints = _hints(cls, annotation)
    return Members(Take.ATTRIBUTE, tuple(Member(name, hints[name]) for name in names))


def _names(cls: type) -> tuple[str, ...] | None:
    if hasattr(cls, "__struct_fields__"):  # msgspec
        return tuple(cls.__struct_fields__)
    if hasattr(cls, "__pydantic_validator__") and hasattr(cls, "model_fields"):
        return tuple(cls.model_fields)
    if dataclasses.is_dataclass(cls):
        return tuple(field.name for field in dataclasses.fields(cls))
    if hasattr(cls, "__attrs_attrs__"):
        return tuple(attribute.name for attribute in cls.__attrs_attrs__)
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        return tuple(cls._fields) if getattr(cls, "__annotations__", None) else None
    return None


def _pydantic(field: Any) -> Any:
    annotation = field.annotation
    for extra in field.metadata:
        annotation = typing.Annotated[annotation, extra]
    return annotation


def _typed_dict(cls: Any, annotation: Any) -> Members:
    members = []
    for name, hint in _hints(cls, annotation).items():
        required = name in cls.__required_keys__
        while get_origin(hint) in _QUALIFIERS:
            required = _QUALIFIERS[get_origin(hint)]
            (hint,) = get_args(hint)  # noqa: PLW2901
        members.append(Member(name, hint, required))
    return Members(Take.ITEM, tuple(members))


def _hints(cls: Any, annotation: Any) -> dict[str, Any]:
    hints = typing.get_type_hints(cls, localns={cls.__name__: cls}, include_extras=True)
    bound = bindings(annotation)
    return {name: substitute(hint, bound) for name, hint in hints.items()} if bound else hints


def bindings(annotation: Any) -> dict[Any, Any]:
    """What the type variables of a class and its bases stand for."""
    cls = get_origin(annotation)
    bound = {}
    if cls is None:
        cls = annotation
    else:
        bound = dict(zip(getattr(cls, "__parameters__", ()), get_args(annotation), strict=False))
    for base in getattr(cls, "__orig_bases__", ()):
        inherited = bindings(base) if get_origin(base) is not typing.Generic else {}
        bound = {**{k: substitute(v, bound) for k, v in inherited.items()}, **bound}
    return bound


def substitute(hint: Any, bound: Mapping[Any, Any]) -> Any:
    """The annotation with its type variables replaced."""
    if isinstance(hint, TypeVar):
        return bound.get(hint, hint)
    parameters = getattr(hint, "__parameters__", ())
    if not parameters or isinstance(hint, type):
        return hint
    return hint[tuple(bound.get(one, one) for one in parameters)]


def unaliased(annotation: Any) -> Any:
    """The annotation behind a NewType or a ``type X = …`` alias."""
    while True:
        origin = get_origin(annotation)
        if isinstance(annotation, NewType):
            annotation = annotation.__supertype__
        elif type(annotation).__name__ == "TypeAliasType":
            annotation = annotation.__value__
        elif type(origin).__name__ == "TypeAliasType":
            annotation = origin.__value__[get_args(annotation)]
        else:
            return annotation
