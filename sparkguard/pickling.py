"""What travels to the workers, and how.

Code of an importable module travels by name. Everything else (``__main__``, notebook
cells, local functions) travels by value, by cloudpickle, with four repairs:

* A msgspec struct is built again with its fields. Plain cloudpickle makes an empty class
  of it, without a word, and every record would then look like poison.
* Textual annotations of a class (``from __future__ import annotations``) are resolved
  before it leaves: the names they use exist here, and not in the worker's ``__main__``.
* Sentinels of dataclasses stay themselves, and what msgspec has cached in a class stays
  at home.
* A function that hides behind a decorator of an importable module is found there again;
  by value it would drag the module's globals with it, a lock among them.
"""
# ruff: noqa: SLF001  cloudpickle has no public way to rebuild a class of another metaclass.

from __future__ import annotations

import copyreg
import dataclasses
import io
import pickle
import sys
import types
import typing
from collections.abc import Callable
from inspect import Parameter, get_annotations, signature
from typing import Any, Final, cast

import cloudpickle
import msgspec
from cloudpickle import cloudpickle as internals

from sparkguard.errors import StageError

_CONFIG: Final = (
    "frozen",
    "eq",
    "order",
    "array_like",
    "gc",
    "repr_omit_defaults",
    "omit_defaults",
    "forbid_unknown_fields",
    "weakref",
    "dict",
    "cache_hash",
)
# Compared by identity, and pickle makes new ones of them.
_NAMED: Final[dict[type, str]] = {
    type(getattr(dataclasses, name)): name
    for name in ("MISSING", "KW_ONLY", "_HAS_DEFAULT_FACTORY")
    if hasattr(dataclasses, name)
}
_MADE_BY_MSGSPEC: Final = frozenset(
    {
        "__annotate__",
        "__annotate_func__",
        "__annotations__",
        "__annotations_cache__",
        "__classdictcell__",
        "__dict__",
        "__match_args__",
        "__msgspec_cached_hash__",
        "__slots__",
        "__struct_config__",
        "__struct_defaults__",
        "__struct_encode_fields__",
        "__struct_fields__",
        "__weakref__",
    }
)


def dumps(obj: Any) -> bytes:
    """The object as bytes that `loads` reads in another process of the same Python version.

    Raises:
        pickle.PicklingError: something in it cannot travel (TypeError for a lock or a socket).
    """
    with io.BytesIO() as file:
        Pickler(file).dump(obj)
        return file.getvalue()


def loads(data: bytes) -> Any:
    """The object in bytes that `dumps` made; they must come from a trusted place."""
    return pickle.loads(data)


def pack(plain: Any) -> bytes:
    """A row of built-in values as bytes, faster than `dumps`."""
    return pickle.dumps(plain, pickle.HIGHEST_PROTOCOL)


def unpack(data: bytes) -> Any:
    """The row in bytes that `pack` made; they must come from a trusted place."""
    return pickle.loads(data)


def loads_on_worker(data: bytes) -> Any:
    """The object in bytes that the driver's `dumps` made.

    Raises:
        StageError: a module that the driver has is missing here.
    """
    try:
        return loads(data)
    except ImportError as error:
        raise StageError(missing_on_worker(error)) from error


def missing_on_worker(error: ImportError) -> str:
    """What to tell a user whose flow could not be unpickled in a worker because of `error`."""
    name = getattr(error, "name", None)
    what = f"The module {name!r}" if name else "A module"
    return (
        f"{what} cannot be imported on this worker ({type(error).__name__}: {error}). "
        "Stages, handlers and sinks of importable modules travel by name: install the module "
        "or the plugin on every worker, or ship it with --py-files or spark.submit.pyFiles."
    )


class Portable:
    """A base for what Spark pickles its own way: whatever is inside travels our way."""

    def __reduce__(self) -> tuple[Any, ...]:
        return loads_on_worker, (dumps(self),)


class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """cloudpickle's pickler, with the repairs that this module is for."""

    def reducer_override(self, obj: Any) -> Any:
        """How `obj` travels, or NotImplemented for pickle's own way."""
        if isinstance(obj, type):
            return self._reduce_class(obj)
        if type(obj) in _NAMED:
            return _NAMED[type(obj)]
        if isinstance(obj, Portable):
            return copyreg.__newobj__, (type(obj),), obj.__dict__  # type: ignore[attr-defined]
        if isinstance(obj, types.FunctionType):
            place = _behind_decorator(obj)
            if place is not None:
                return look_up, place
        return super().reducer_override(obj)

    def _reduce_class(self, cls: type) -> Any:
        if isinstance(cls, msgspec.StructMeta) and not internals._should_pickle_by_reference(cls):
            return _reduce_struct(cls)
        reduced = super().reducer_override(cls)
        if isinstance(reduced, tuple) and len(reduced) > 2:  # noqa: PLR2004  it goes by value
            body = reduced[2][0]
            body.pop("__msgspec_cache__", None)  # left by decoding, and no pickle can hold it
            if "__annotations__" in body:
                body["__annotations__"] = _own_annotations(cls)
        return reduced


def _behind_decorator(function: types.FunctionType) -> tuple[str, str, int] | None:
    """Where an importable module holds a decorated `function`, and how deep under it."""
    module, name = function.__module__, function.__qualname__
    found, depth = at_home(module, name), 0
    while found is not None and found is not function:
        found, depth = getattr(found, "__wrapped__", None), depth + 1
    return (module, name, depth) if found is function and depth else None


def at_home(module: str | None, name: str) -> Any:
    """What an importable module holds under a qualified name; None where code goes by value."""
    home = sys.modules.get(module or "")
    if home is None or module in {"__main__", "__mp_main__"} or "<locals>" in name:
        return None
    return None if internals._is_registered_pickle_by_value(home) else _walk(home, name)


def look_up(module: str, name: str, depth: int = 0) -> Any:
    """What `at_home` found, in another process; `depth` decorators deep."""
    __import__(module)
    found = _walk(sys.modules[module], name)
    for _ in range(depth):
        found = found.__wrapped__
    return found


def _walk(found: Any, name: str) -> Any:
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


class _Late:
    """A callable of a struct that is known once the class is: it may refer to the class."""

    def __init__(self) -> None:
        self.target: Callable[..., Any] | None = None

    def __call__(self, *args: Any) -> Any:
        return cast("Callable[..., Any]", self.target)(*args)


def _reduce_struct(cls: Any) -> tuple[Any, ...]:
    late: list[tuple[_Late, Any]] = []
    own = [name for name in get_annotations(cls) if name in cls.__struct_fields__]
    post_init = cls.__dict__.get("__post_init__")
    blueprint = {
        "name": cls.__name__,
        "bases": cls.__dict__.get("__orig_bases__", cls.__bases__),
        "fields": own,
        "defaults": {k: v for k, v in _defaults(cls, late).items() if k in own},
        "post_init": None if post_init is None else _later(post_init, late),
        "config": _config(cls, own),
        "tracker": internals._get_or_create_tracker_id(cls),
    }
    kept = {
        name: value
        for name, value in cls.__dict__.items()
        if name not in _MADE_BY_MSGSPEC and name not in own
    }
    state = (_own_annotations(cls), kept, late)
    return _make_struct, (blueprint,), state, None, None, _finish_struct


def _later(target: Any, late: list[tuple[_Late, Any]]) -> _Late:
    stand_in = _Late()
    late.append((stand_in, target))
    return stand_in


def _defaults(cls: Any, late: list[tuple[_Late, Any]]) -> dict[str, tuple[str, Any]]:
    """The keyword of `msgspec.field` and its value, by field."""
    values = cls.__struct_defaults__
    found: dict[str, tuple[str, Any]] = {}
    names = cls.__struct_fields__[len(cls.__struct_fields__) - len(values) :]
    for name, value in zip(names, values, strict=True):
        factory = getattr(value, "factory", None) if type(value).__name__ == "Factory" else None
        if factory in (list, dict, set, bytearray):
            found[name] = ("default_factory", factory)
        elif factory is not None:
            found[name] = ("default_factory", _later(factory, late))
        elif value is not msgspec.NODEFAULT:
            found[name] = ("default", value)
    return found


def _config(cls: Any, own: list[str]) -> dict[str, Any]:
    config = cls.__struct_config__
    known = {name: getattr(config, name) for name in _CONFIG if hasattr(config, name)}
    parameters = signature(cls).parameters
    pairs = zip(cls.__struct_fields__, cls.__struct_encode_fields__, strict=True)
    return {
        **known,
        "kw_only": any(parameters[name].kind is Parameter.KEYWORD_ONLY for name in own),
        "rename": {name: encoded for name, encoded in pairs if name != encoded} or None,
        "tag": False if config.tag is None else config.tag,
        "tag_field": config.tag_field,
    }


def _own_annotations(cls: type) -> dict[str, Any]:
    """The class's own annotations, resolved where they can be."""
    raw = get_annotations(cls)
    try:
        hints = typing.get_type_hints(cls, localns={cls.__name__: cls}, include_extras=True)
    except Exception:  # the class's own readers will say what is wrong with them
        return raw
    return {name: hints.get(name, note) for name, note in raw.items()}


_unfinished: Final[set[type]] = set()


def _make_struct(blueprint: dict[str, Any]) -> Any:
    """The class with its fields; what may refer to it follows in `_finish_struct`."""
    namespace: dict[str, Any] = {
        "__annotations__": dict.fromkeys(blueprint["fields"], Any),
        **{name: msgspec.field(**{how: v}) for name, (how, v) in blueprint["defaults"].items()},
    }
    late = blueprint["post_init"]
    if late is not None:
        namespace["__post_init__"] = lambda self: late(self)  # noqa: PLW0108  a function binds
    made = types.new_class(
        blueprint["name"],
        blueprint["bases"],
        {name: value for name, value in blueprint["config"].items() if value is not None},
        lambda body: body.update(namespace),
    )
    cls = internals._lookup_class_or_track(blueprint["tracker"], made)
    if cls is made:
        _unfinished.add(cls)
    return cls


def _finish_struct(cls: Any, state: tuple[dict[str, Any], dict[str, Any], Any]) -> Any:
    annotations, kept, late = state
    if cls in _unfinished:  # else this process has the class, and keeps it as it is
        _unfinished.discard(cls)
        for stand_in, target in late:
            stand_in.target = target
        for name, value in kept.items():
            setattr(cls, name, value)
        cls.__annotations__ = annotations
    return cls
