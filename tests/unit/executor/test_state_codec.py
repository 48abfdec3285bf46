"""Whether a state reads back as it was stored, and what is said where it would not."""

from __future__ import annotations

import dataclasses
import math
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, Generic, TypedDict, TypeVar

import msgspec
import pydantic
import pytest

from sparkguard.executor.state_codec import proven, state_codec

T = TypeVar("T")
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


class Base(msgspec.Struct):
    """Declared."""

    count: float = 0


class Sub(Base):
    """Given."""

    note: str = ""


class Holder(msgspec.Struct):
    """Has others in it."""

    held: list[Base] = []
    names: set[str] = set()
    more: dict[int, Any] = {}


class Of(msgspec.Struct, Generic[T]):
    """Of anything."""

    one: T


@dataclasses.dataclass
class Plain:
    """A dataclass, which coerces nothing."""

    price: Decimal
    at: datetime


class Typed(TypedDict):
    """A typed dict."""

    count: int


class Aliased(pydantic.BaseModel):
    """Each field has the other one's alias."""

    a: int = pydantic.Field(1, alias="b")
    b: int = pydantic.Field(2, alias="a")


class Inner(pydantic.BaseModel):
    """Strict by its own config."""

    model_config = {"strict": True}
    at: datetime


class Strict(pydantic.BaseModel):
    """Of values that msgpack has not."""

    model_config = {"strict": True}
    at: datetime
    price: Decimal
    names: set[str]
    pair: tuple[int, bytes]
    span: timedelta
    day: date = pydantic.Field(strict=True)
    inner: Inner
    ratio: float = 0.5


class Doubled(pydantic.BaseModel):
    """Its validator changes what it has validated before."""

    count: int

    @pydantic.field_validator("count")
    @classmethod
    def twice(cls, value: int) -> int:
        """Not idempotent."""
        return value * 2


class Shortened(pydantic.BaseModel):
    """Its serializer forgets."""

    name: str

    @pydantic.field_serializer("name")
    def first(self, value: str) -> str:
        """One letter."""
        return value[:1]


class SubModel(Aliased):
    """Given for `Aliased`."""

    note: str = ""


class Box(pydantic.BaseModel, Generic[T]):
    """Of anything."""

    held: T


NAIVE = datetime(2026, 1, 1)  # noqa: DTZ001  it is the point

KEPT = [
    (Base, Base(1)),  # read back as 1.0
    (Base | int, Base(2.5)),
    (Of[int], Of(1)),
    (Holder, Holder([Base(1)], {f"n{n}" for n in range(40)}, {1: {"x": 1}, 2: math.nan})),
    (Plain, Plain(Decimal("1.10"), NOON)),
    (Typed, Typed(count=1)),
    (Aliased, Aliased(a=5, b=6)),
    (Box, Box[int](held=1)),
    (dict, {"at": NOON, "raw": b"\xff"}),
    (
        Strict,
        Strict(
            at=NAIVE,
            price=Decimal("1.10"),
            names={"a", "b"},
            pair=(1, b"\xff"),
            span=timedelta(1),
            day=NOON.date(),
            inner=Inner(at=NAIVE),
        ),
    ),
]


@pytest.mark.parametrize(("kind", "state"), KEPT)
def test_what_is_read_back(kind: Any, state: Any) -> None:
    """Aliases, strict models and types that msgpack has not included."""
    encode, decode = state_codec(kind)
    again = decode(proven(state, encode, decode))
    assert again == state or kind is Holder
    assert repr(again.more if kind is Holder else "") in {repr(getattr(state, "more", "")), "''"}


LOST = [
    (Base, Sub(1, "x"), "gave a Sub, and state= is Base"),
    (Aliased, SubModel(a=1, b=2, note="x"), "gave a SubModel, and state= is Aliased"),
    (Base | int, Sub(1), "gave a Sub, and state= is Base"),
    (Holder, Holder([Sub(1, "x")]), "^'held' of a Holder reads back as something else"),
    (Doubled, Doubled(count=1), "^'count' of a Doubled reads back"),
    (Shortened, Shortened(name="long"), None),
    (Typed, {"count": 1, "more": 2}, "^'more' of a dict reads back"),
]


@pytest.mark.parametrize(("kind", "state", "said"), LOST)
def test_what_would_be_lost(kind: Any, state: Any, said: str | None) -> None:
    """A failure that names what is lost; of a serializer only that it has nothing more to lose."""
    encode, decode = state_codec(kind)
    if said is None:
        assert decode(proven(state, encode, decode)) != state
        return
    with pytest.raises(TypeError, match=said):
        proven(state, encode, decode)


def test_what_cannot_be_read_is_left_to_the_reader() -> None:
    """Its own sentence is better than one about a difference."""
    encode, decode = state_codec(Base)
    data = proven({"count": "many"}, encode, decode)
    with pytest.raises(msgspec.ValidationError, match="count"):
        decode(data)
