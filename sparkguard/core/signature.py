"""A signature: what a stage's function takes and gives, read from its annotations.

Annotations are resolved when a flow is built, not when a function is decorated,
so forward references work.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections import abc
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Union, get_args, get_origin

from sparkguard.core.callables import is_coroutine, is_generator, unwrapped
from sparkguard.core.record import Record
from sparkguard.core.sub_batch import SubBatch
from sparkguard.core.update import Update
from sparkguard.errors import StageError

ITERABLES: Final = frozenset(
    {
        list,
        tuple,
        set,
        frozenset,
        abc.Iterable,
        abc.Iterator,
        abc.Generator,
        abc.Sequence,
        abc.MutableSequence,
        abc.Collection,
        abc.Set,
    }
)
"""What a flat_map may be annotated to give."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """What a stage takes and gives.

    Attributes:
        input: annotation of the first parameter; Any where there is none.
        output: what one value of the output is: an annotation, a DDL string, or a StructType.
        wants_record: the second parameter takes the `Record`.
        wants_sub_batch: of a foreach_batch, whose third parameter takes the `SubBatch`.
        input_optional, output_optional: the annotation says that None is a value.
    """

    input: Any = Any
    output: Any = Any
    wants_record: bool = False
    wants_sub_batch: bool = False
    input_optional: bool = False
    output_optional: bool = False


def signature_of(
    function: Callable[..., Any],
    *,
    kind: str,
    returns: Any = None,
    namespace: Mapping[str, Any] | None = None,
) -> Signature:
    """The signature of a record stage's function.

    Args:
        returns: what the user declared instead of the return annotation.
        namespace: names that the annotations may use beside the function's globals.

    Raises:
        StageError: the function cannot be such a stage.
    """
    _refuse_wrong_kind(function, kind)
    plain = unwrapped(function)
    first, second = _parameters(function, kind)
    hints = _Hints(plain, namespace or {})
    takes = hints.get(first) if first else Any
    wants_record = second is not None and hints.is_one(second, Record)
    if second is not None and not wants_record and second.default is inspect.Parameter.empty:
        msg = (
            f"its second parameter {second.name!r} must be annotated sparkguard.Record "
            "(a stage gets one value, and the record if it asks for it)."
        )
        raise StageError(msg)
    _refuse_wrong_input(takes, kind)
    declared = returns is not None
    gives = hints.returned(required=not declared and kind != "filter")
    output = returns if declared else _output(gives, kind)
    return Signature(
        input=takes,
        output=output,
        wants_record=wants_record,
        input_optional=first is not None and is_optional(takes) and hints.has(first),
        output_optional=is_optional(output) or (kind != "flat_map" and is_optional(gives)),
    )


def batch_signature(
    function: Callable[..., Any], namespace: Mapping[str, Any] | None = None
) -> Signature:
    """The signature of a batch function.

    Raises:
        StageError: it must be given a third argument, and does not say which.
    """
    third = third_parameter(function)
    wants = third is not None and _Hints(unwrapped(function), namespace or {}).is_one(
        third, SubBatch
    )
    if third is not None and not wants and third.default is inspect.Parameter.empty:
        msg = (
            f"its third parameter {third.name!r} must be annotated sparkguard.SubBatch "
            "(it gets batch and batch_id, and which rows they are if it asks for it)."
        )
        raise StageError(msg)
    return Signature(output=None, wants_sub_batch=wants)


def keyed_signature(
    function: Callable[..., Any],
    state: Any,
    returns: Any = None,
    namespace: Mapping[str, Any] | None = None,
) -> Signature:
    """The signature of a stateful stage's function: what an event is, and what is emitted.

    Raises:
        StageError: the function does not take state and event, its annotations are of another
            state, or it does not say what it emits.
    """
    _refuse_wrong_kind(function, "stateful")
    try:
        inspect.signature(function).bind(None, None)
        named = list(inspect.signature(function).parameters.values())
    except TypeError as error:
        msg = f"it must take two arguments, (state, event): {error}."
        raise StageError(msg) from None
    hints = _Hints(unwrapped(function), namespace or {})
    takes = hints.get(named[1]) if len(named) > 1 else Any
    gives = hints.returned(required=returns is None)
    parts = get_args(gives) if get_origin(gives) is Update else ()
    _refuse_other_state(state, hints.known(named[0].name), takes, parts)
    says = isinstance(gives, type) and gives not in (Any, inspect.Signature.empty)
    if returns is not None and says and _is_other(gives, Update):
        msg = f"it gives sparkguard.Update, and is annotated to return {_name(gives)}."
        raise StageError(msg)
    if returns is None:
        if len(parts) != 2:  # noqa: PLR2004  # state, element
            msg = "say what it emits: returns=Report, or the annotation sg.Update[State, Report]."
            raise StageError(msg)
        returns = parts[1]
    return Signature(input=takes, output=returns, output_optional=is_optional(returns))


def _refuse_other_state(state: Any, first: Any, second: Any, parts: tuple[Any, ...]) -> None:
    """Refuse annotations that cannot be of the declared state."""
    if _is_other(first, state):
        if not _is_other(second, state) and second is not Any:
            msg = "its parameters are swapped: the state comes first, as in (state, event)."
            raise StageError(msg)
        msg = f"its first parameter is annotated {_name(first)}, and state= is {_name(state)}."
        raise StageError(msg)
    if parts and _is_other(parts[0], state):
        msg = f"it is annotated to give Update[{_name(parts[0])}, …], and state= is {_name(state)}."
        raise StageError(msg)


def _is_other(annotation: Any, state: Any) -> bool:
    """Whether what is annotated is surely none of the state's types."""
    one, other = _members(annotation), _members(state)
    return bool(one) and all(_apart(some, any_) for some in one for any_ in other)


def _members(annotation: Any) -> list[Any]:
    """The types that a value may be of, None left out."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return _members(get_args(annotation)[0])
    if origin in (Union, types.UnionType):
        return [member for part in get_args(annotation) for member in _members(part)]
    return [] if annotation is type(None) else [annotation]


def _apart(annotation: Any, state: Any) -> bool:
    one, other = get_origin(annotation) or annotation, get_origin(state) or state
    if one in (Any, object) or not isinstance(one, type) or not isinstance(other, type):
        return False
    if typing.is_typeddict(one):
        return one is not other and not issubclass(dict, other)
    try:
        return not issubclass(other, one)
    except TypeError:  # a protocol with attributes
        return False


def _name(annotation: Any) -> str:
    if get_origin(annotation) in (Union, types.UnionType):
        return " | ".join(_name(part) for part in get_args(annotation) if part is not type(None))
    return getattr(annotation, "__name__", None) or repr(annotation)


def third_parameter(function: Callable[..., Any]) -> inspect.Parameter | None:
    """The parameter that a third positional argument would go to, by itself."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # a function of C that describes nothing
        return None
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    named = [parameter for parameter in parameters if parameter.kind in kinds]
    return named[2] if len(named) == 3 else None  # noqa: PLR2004


def is_optional(annotation: Any) -> bool:
    """Whether None is a value of the annotated type; yes for Any and object."""
    if annotation in (None, type(None), Any, object):
        return True
    origin = get_origin(annotation)
    if origin is Annotated:
        return is_optional(get_args(annotation)[0])
    if origin in (Union, types.UnionType):
        return any(is_optional(part) for part in get_args(annotation))
    value = getattr(annotation, "__value__", None)
    return value is not None and type(annotation).__name__ == "TypeAliasType" and is_optional(value)


def _refuse_wrong_kind(function: Callable[..., Any], kind: str) -> None:
    if is_coroutine(function):
        msg = "it is an async function, and nothing would await it; make it a plain function."
        raise StageError(msg)
    if kind != "flat_map" and is_generator(function):
        msg = f"it is a generator function, and a {kind} gives one value; use flat_map."
        raise StageError(msg)


def _parameters(
    function: Callable[..., Any], kind: str
) -> tuple[inspect.Parameter | None, inspect.Parameter | None]:
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except ValueError:  # a function of C that describes nothing
        return None, None
    kinds = inspect.Parameter
    named = [
        p for p in parameters if p.kind in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD)
    ]
    rest = [p for p in parameters if p.kind is kinds.VAR_POSITIONAL]
    unmet = [p for p in parameters if p.kind is kinds.KEYWORD_ONLY and p.default is kinds.empty]
    unmet += [p for p in named[2:] if p.default is kinds.empty]
    if unmet:
        msg = (
            f"it has too many parameters ({', '.join(repr(p.name) for p in unmet)}): "
            f"a {kind} gets one value, and the record if a second is annotated sparkguard.Record."
        )
        raise StageError(msg)
    if not named and not rest:
        msg = f"it has no parameter: a {kind} gets one value."
        raise StageError(msg)
    padded = [*named, *rest, None]
    second = named[1] if len(named) > 1 else None
    return padded[0], second


class _Hints:
    """The annotations of one function, each resolved when it is asked for."""

    def __init__(self, function: Callable[..., Any], namespace: Mapping[str, Any]) -> None:
        made = {}
        if isinstance(function, type):  # a class is a function that gives its instances
            made["return"] = function
            function = vars(function).get("__init__", function)
        self._raw = {**getattr(function, "__annotations__", {}), **made}
        self._globals = getattr(function, "__globals__", {})
        self._locals = {**_closure(function), **namespace}

    def has(self, parameter: inspect.Parameter) -> bool:
        return parameter.name in self._raw

    def get(self, parameter: inspect.Parameter) -> Any:
        return self._resolve(parameter.name)

    def known(self, parameter: str) -> Any:
        """The annotation; Any where there is none, or none that can be resolved."""
        try:
            return self._resolve(parameter)
        except StageError:
            return Any

    def is_one(self, parameter: inspect.Parameter, wanted: type) -> bool:
        """Whether it is annotated with this class."""
        raw = self._raw.get(parameter.name)
        # A name that only a type checker imports cannot be resolved, and is clear all the same.
        if isinstance(raw, str) and raw.strip("\"' ").rpartition(".")[2] == wanted.__name__:
            return True
        return raw is not None and self._resolve(parameter.name) is wanted

    def returned(self, *, required: bool) -> Any:
        if "return" not in self._raw:
            if not required:
                return inspect.Signature.empty
            msg = "it has no return annotation; annotate it, or say returns=."
            raise StageError(msg)
        try:
            return self._resolve("return")
        except StageError:
            if required:
                raise
            return inspect.Signature.empty

    def _resolve(self, name: str) -> Any:
        if name not in self._raw:
            return Any
        one = types.SimpleNamespace(__annotations__={name: self._raw[name]})
        try:
            hints = typing.get_type_hints(
                one, globalns=self._globals, localns=self._locals, include_extras=True
            )
        except Exception as error:
            what = "return annotation" if name == "return" else f"annotation of {name!r}"
            msg = (
                f"its {what} {self._raw[name]!r} cannot be resolved ({error}); define or import "
                "the type where the function is defined, not only for type checkers."
            )
            raise StageError(msg) from error
        return hints[name]


def _closure(function: Any) -> dict[str, Any]:
    names: dict[str, Any] = {}
    code = getattr(function, "__code__", None)
    for name, cell in zip(
        getattr(code, "co_freevars", ()), getattr(function, "__closure__", None) or (), strict=False
    ):
        try:
            names[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    return names


def _refuse_wrong_input(takes: Any, kind: str) -> None:
    if kind != "deserialize":
        return
    parts = get_args(takes) if get_origin(takes) in (Union, types.UnionType) else (takes,)
    wrong = [part for part in parts if isinstance(part, type) and not _takes_bytes(part)]
    if parts and len(wrong) == len(parts):
        msg = f"a deserialize function gets bytes, and its parameter is annotated {takes!r}."
        raise StageError(msg)


def _takes_bytes(cls: type) -> bool:
    try:
        return issubclass(bytes, cls) or cls in (bytearray, memoryview)
    except TypeError:
        return True


def _output(gives: Any, kind: str) -> Any:
    if kind == "filter":
        if gives not in (inspect.Signature.empty, bool, Any):
            msg = f"a filter gives bool, and it is annotated {gives!r}."
            raise StageError(msg)
        return bool
    if gives is type(None):
        msg = f"a {kind} gives a value, and it is annotated None."
        raise StageError(msg)
    return _element(gives) if kind == "flat_map" else gives


def _element(gives: Any) -> Any:
    origin = get_origin(gives)
    if origin is Annotated:
        return _element(get_args(gives)[0])
    if origin not in ITERABLES:
        bare = " Say of what, as in list[Order]." if gives in ITERABLES else ""
        msg = (
            f"a flat_map gives a list, Iterable or Iterator of values, "
            f"and it is annotated {gives!r}.{bare}"
        )
        raise StageError(msg)
    parts = get_args(gives)
    if origin is tuple and (len(parts) != 2 or parts[1] is not Ellipsis):  # noqa: PLR2004
        msg = f"a flat_map gives values of one type, as in tuple[Order, ...], not {gives!r}."
        raise StageError(msg)
    return parts[0]
