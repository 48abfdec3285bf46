"""The contract of a stage.

A stage is a description: a name, a kind, a function or a format. Decorators make
it, a flow binds it to settings. Called directly it behaves as the undecorated
function, so a unit test needs neither a guard nor Spark.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final, Generic, ParamSpec, TypeVar, cast

from sparkguard import pickling
from sparkguard.core.callables import unwrapped
from sparkguard.core.failure import Category
from sparkguard.core.keyed import Keyed
from sparkguard.core.outgoing import Outgoing
from sparkguard.core.signature import (
    Signature,
    batch_signature,
    is_optional,
    keyed_signature,
    signature_of,
)
from sparkguard.errors import StageError
from sparkguard.formats.base import Format

P = ParamSpec("P")
R = TypeVar("R")

CATEGORIES: Final[Mapping[str, Category]] = {
    "deserialize": Category.DESERIALIZATION,
    "map": Category.PROCESSING,
    "flat_map": Category.PROCESSING,
    "filter": Category.PROCESSING,
    "map_batches": Category.PROCESSING,
    "stateful": Category.PROCESSING,
    "foreach_batch": Category.PRODUCTION,
    "produce": Category.PRODUCTION,
}
"""Where a stage of each kind fails."""


@dataclass(frozen=True, kw_only=True)
class Stage(Generic[P, R]):
    """A named step that may fail.

    Attributes:
        name: unique in its flow; the key of its settings.
        kind: one of `CATEGORIES`.
        function: the user's function; None where a format reads the value.
        format: of a deserialize stage made from a format.
        returns: what the function gives, instead of its annotation: a DDL string, a
            StructType or a type; of a flat_map, what one element is.
        partial: each element of a flat_map stands for itself.
        outgoing: of a produce stage, how a row becomes a message.
        producer: of a produce stage, settings of librdkafka.
        keyed: of a stateful stage, its key, its state and what guards it.
    """

    name: str
    kind: str
    function: Callable[..., Any] | None = None
    format: Format | None = None
    returns: Any = None
    partial: bool = False
    outgoing: Outgoing | None = None
    producer: Mapping[str, Any] = field(default_factory=dict, repr=False, hash=False)
    keyed: Keyed | None = None

    def __post_init__(self) -> None:
        if self.kind not in CATEGORIES:
            msg = f"{self.kind!r} is no kind of stage; known: {', '.join(CATEGORIES)}."
            raise StageError(msg, stage=self.name)
        if self.function is not None:
            self.__dict__.update(_copied(self.function))
            self.__dict__["__wrapped__"] = self.function
            self.__dict__["_namespace"] = _defining_names(self.function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """What the undecorated function gives, or the format's decoder."""
        if self.function is not None:
            return cast("R", self.function(*args, **kwargs))
        return cast("R", self._decode(*args, **kwargs))

    def __reduce__(self) -> tuple[Any, ...]:
        place = self.__dict__.get("__module__"), self.__dict__.get("__qualname__") or ""
        if pickling.at_home(*place) is self:
            return _look_up, place
        # Methods of old pickles stay valid when a field is added: fields go by name.
        return _rebuild, ({f.name: getattr(self, f.name) for f in fields(self)},)

    @property
    def category(self) -> Category:
        """Where this stage fails; follows from its kind."""
        return CATEGORIES[self.kind]

    def signature(self) -> Signature:
        """What the stage takes and gives; resolved on each call.

        Raises:
            StageError: the function cannot be a stage of this kind.
        """
        try:
            return self._signature()
        except StageError as error:
            raise StageError(error.problem, stage=self.name) from error.__cause__

    def _signature(self) -> Signature:
        if self.function is None:
            return self._format_signature()
        if self.kind == "foreach_batch":
            return batch_signature(self.function, self.__dict__["_namespace"])
        namespace = self.__dict__["_namespace"]
        if self.kind == "stateful":
            state = Any if self.keyed is None else self.keyed.state
            return keyed_signature(self.function, state, self.returns, namespace)
        return signature_of(
            self.function, kind=self.kind, returns=self.returns, namespace=namespace
        )

    def _format_signature(self) -> Signature:
        if self.format is None:
            msg = "it has neither a function nor a format."
            raise StageError(msg)
        check = getattr(self.format, "check", None)
        if check is not None:
            check()
        output = self.format.type if self.returns is None else self.returns
        optional = output is not Any and is_optional(output)
        return Signature(input=bytes, output=output, output_optional=optional)

    @functools.cached_property
    def _decode(self) -> Callable[..., Any]:
        if self.format is None:
            msg = "it has neither a function nor a format."
            raise StageError(msg, stage=self.name)
        return self.format.decoder()


def stage_name(function: Callable[..., Any], name: str | None) -> str:
    """The name given, else the function's own.

    Raises:
        StageError: the function has none, like a lambda.
    """
    plain = unwrapped(function)
    own = getattr(function, "__name__", None) or getattr(plain, "__name__", "")
    if own == "__call__":  # a callable object goes by its class
        own = plain.__qualname__.split(".")[-2]
    found = name or own
    if not callable(function):
        msg = f"a stage needs a function, not {type(function).__name__}."
        raise StageError(msg, stage=name)
    if not found or found == "<lambda>":
        msg = "A lambda has no name: say name=."
        raise StageError(msg)
    return str(found)


def record_stage(kind: str, function: Callable[..., Any], **options: Any) -> Stage[..., Any]:
    """A stage of `kind` over `function`, named as `stage_name` says."""
    name = stage_name(function, options.pop("name", None))
    return Stage(kind=kind, name=name, function=function, **options)


def _copied(function: Callable[..., Any]) -> dict[str, Any]:
    plain = unwrapped(function)
    names = ("__module__", "__name__", "__qualname__", "__doc__")
    found = {name: getattr(function, name, getattr(plain, name, None)) for name in names}
    if isinstance(function, functools.partial):  # its docstring is that of partial
        found["__doc__"] = plain.__doc__
    return found


def _defining_names(function: Callable[..., Any]) -> dict[str, Any]:
    """What a local function's textual annotations name in the scope that defines it."""
    code = getattr(unwrapped(function), "__code__", None)
    if code is None or "<locals>" not in code.co_qualname:
        return {}
    frame = inspect.currentframe()
    while frame is not None:
        if code in frame.f_code.co_consts:
            text = " ".join(
                note for note in unwrapped(function).__annotations__.values() if type(note) is str
            )
            return {name: value for name, value in frame.f_locals.items() if name in text}
        frame = frame.f_back
    return {}


def _look_up(module: str, qualname: str) -> Any:
    """Import a stage by name (the other end of `Stage.__reduce__`)."""
    found = pickling.look_up(module, qualname)
    if not isinstance(found, Stage):
        msg = f"{module}.{qualname} is a stage where the flow was built and none here."
        raise StageError(msg)
    return found


def _rebuild(state: dict[str, Any]) -> Stage[..., Any]:
    return Stage(**state)
