"""An update: what a stateful stage's function makes of one event."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from enum import Enum
from typing import Final, Generic, Literal, TypeVar

import msgspec

S = TypeVar("S")
E = TypeVar("E")

Timer = datetime | timedelta | Literal["off"] | None


class Keep(Enum):
    """The type of `KEEP`; an enum because type checkers know its one member by identity."""

    KEEP = "keep"


KEEP: Final = Keep.KEEP
"""As an update's state: it stays as it is, and so does its version."""


class Update(msgspec.Struct, Generic[S, E], frozen=True, kw_only=True):
    """The key's new state, and what is emitted; a struct because one is made for every event.

    Attributes:
        state: replaces the key's state. None deletes it, with its version, the ids that are
            remembered and its timer: the key is then as new. ``KEEP`` leaves it and its version
            as they are, none where there is none, and the event still counts as applied: its id
            and number are remembered, and what it emits leaves.
        emit: values for the output, in order; they leave together with the state or not at all.
        timer: sets the key's one timer: at a time with a zone, or so long after the batch's
            start. None leaves it as it is, ``"off"`` removes it.
    """

    state: S | Keep | None
    emit: Iterable[E] = ()
    timer: Timer = None
