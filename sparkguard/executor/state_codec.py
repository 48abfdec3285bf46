"""How a state of a declared type becomes the bytes that are stored, and back.

msgpack, because JSON has no NaN and no bytes. What a type's own validators change when it is read,
and what it has no field for, `proven` finds; what its serializers leave out nobody does.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import cache
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import msgspec

from sparkguard.core.fingerprint import masked

Codec = tuple[Callable[[Any], bytes], Callable[[bytes], Any]]

_SHOWN = 1_000
_BY_NAME = (2, 11)
"""The pydantic that can read fields by their names where they have aliases."""


def state_codec(kind: Any) -> Codec:
    """What encodes and what decodes a state of a type; made once a task.

    Encoding raises TypeError for an instance of a subclass: its further fields would be lost.

    Raises:
        TypeError: msgspec cannot read such a type.
    """
    encode = msgspec.msgpack.Encoder(enc_hook=_dumped).encode
    exact = frozenset(_with_fields(kind))
    decode: Callable[[bytes], Any]
    if _is_pydantic(kind):

        def decode(data: bytes) -> Any:
            return _validated(kind, _plain(data))
    else:
        decode = msgspec.msgpack.Decoder(kind, dec_hook=_validated).decode
    if not exact:
        return encode, decode

    def exactly(state: Any) -> bytes:
        if type(state) not in exact:
            _refuse_more(state, exact)
        return encode(state)

    return exactly, decode


def proven(state: Any, encode: Callable[[Any], bytes], decode: Callable[[bytes], Any]) -> bytes:
    """A state's bytes, of which it is known that reading them loses and changes nothing.

    Raises:
        TypeError: something is; names the type and what differs.
    """
    data = encode(state)
    try:
        again = encode(decode(data))
    except Exception:
        # Whoever reads it next says why it cannot be read.
        return data
    if data != again and (where := _differs(_plain(data), _plain(again), "")) is not None:
        at = f"{where!r} of a " if where else ""
        msg = (
            f"{at}{type(state).__name__} reads back as something else than was stored. Let its "
            "type store and read the same: no validator or serializer that changes a value, no "
            "field that its state= does not have."
        )
        raise TypeError(msg)
    return data


def excerpt(data: bytes | None, redact: tuple[str, ...] = ()) -> str:
    """A stored state as JSON text of bounded length, for a person; never raises."""
    if data is None:
        return ""
    try:
        text = msgspec.json.encode(_plain(data)).decode()
    except Exception as error:
        # A letter is built whatever the state holds (P17).
        return f"(not shown: {type(error).__name__})"
    return masked(text, _SHOWN, redact)


_plain = msgspec.msgpack.Decoder().decode


def _is_pydantic(kind: Any) -> bool:
    return isinstance(kind, type) and hasattr(kind, "__pydantic_validator__")


def _with_fields(kind: Any) -> Iterator[type]:
    """The classes with fields that a state may be of."""
    origin = get_origin(kind)
    if origin in (Union, UnionType):
        for part in get_args(kind):
            yield from _with_fields(part)
    elif origin is Annotated:
        yield from _with_fields(get_args(kind)[0])
    else:
        found = origin or kind
        marks = ("__struct_fields__", "__dataclass_fields__", "__pydantic_fields__")
        if isinstance(found, type) and any(hasattr(found, mark) for mark in marks):
            yield found


def _refuse_more(state: Any, exact: frozenset[type]) -> None:
    for declared in exact:
        generic = getattr(type(state), "__pydantic_generic_metadata__", {})
        if generic.get("origin") is declared:
            return
        if isinstance(state, declared):
            msg = (
                f"The function gave a {type(state).__name__}, and state= is {declared.__name__}: "
                f"what only a {type(state).__name__} has would be lost. Give the declared type, "
                "or declare that which is given."
            )
            raise TypeError(msg)


def _differs(before: Any, after: Any, path: str) -> str | None:
    """Where something of a plain value is gone or another; None where all of it is there."""
    if isinstance(before, dict) and isinstance(after, dict):
        # What is only in the later one are defaults.
        for name, value in before.items():
            at = f"{path}.{name}".lstrip(".")
            if name not in after:
                return at
            if (found := _differs(value, after[name], at)) is not None:
                return found
        return None
    if isinstance(before, list) and isinstance(after, list):
        same = len(before) == len(after) and (
            all(_differs(*pair, path) is None for pair in zip(before, after, strict=True))
            or sorted(map(repr, before)) == sorted(map(repr, after))  # a set's order is its own
        )
        return None if same else path
    # 1 may be read as 1.0 or as Decimal("1"), and NaN equals nothing.
    return None if before == after or str(before) == str(after) else path


def _dumped(value: Any) -> Any:
    dump = getattr(value, "model_dump", None)
    if dump is None:
        msg = f"A state cannot hold {type(value).__name__}: it is no msgspec struct, dataclass, "
        raise TypeError(msg + "TypedDict, pydantic model or plain value.")
    return dump(mode="python", by_alias=False, round_trip=True)


def _validated(kind: Any, plain: Any) -> Any:
    if _is_pydantic(kind):
        # Not strictly: msgpack has no naive datetime, no Decimal and no set.
        return kind.__pydantic_validator__.validate_python(plain, strict=False, **_by_name())
    msg = f"{kind!r} is no type that a state can be read as"
    # What msgspec asks of a hook that does not know a type.
    raise NotImplementedError(msg)


@cache
def _by_name() -> dict[str, bool]:
    version = sys.modules["pydantic"].VERSION.split(".")
    known = (int(version[0]), int(version[1])) >= _BY_NAME
    return {"by_alias": False, "by_name": True} if known else {}
