"""How a state of a declared type becomes the bytes that are stored, and back.

msgpack, because JSON has no NaN and no bytes: what is stored reads back as it was.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from sparkguard.core.fingerprint import masked

Codec = tuple[Callable[[Any], bytes], Callable[[bytes], Any]]

_SHOWN = 1_000


def state_codec(kind: Any) -> Codec:
    """What encodes and what decodes a state of a type; made once a task.

    Raises:
        TypeError: msgspec cannot read such a type.
    """
    if _is_pydantic(kind):
        inner = msgspec.msgpack.Encoder(enc_hook=_dumped).encode
        validate = kind.__pydantic_validator__.validate_python
        return inner, lambda data: validate(_plain(data))
    encode = msgspec.msgpack.Encoder(enc_hook=_dumped).encode
    return encode, msgspec.msgpack.Decoder(kind, dec_hook=_validated).decode


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


def _dumped(value: Any) -> Any:
    dump = getattr(value, "model_dump", None)
    if dump is None:
        msg = f"A state cannot hold {type(value).__name__}: it is no msgspec struct, dataclass, "
        raise TypeError(msg + "TypedDict, pydantic model or plain value.")
    return dump(mode="python")


def _validated(kind: Any, plain: Any) -> Any:
    if _is_pydantic(kind):
        return kind.__pydantic_validator__.validate_python(plain)
    msg = f"{kind!r} is no type that a state can be read as"
    # What msgspec asks of a hook that does not know a type.
    raise NotImplementedError(msg)
