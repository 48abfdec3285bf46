"""Whether what was stored as one type can be read as another."""

from __future__ import annotations

import dataclasses
import re
from datetime import date, datetime
from enum import Enum
from typing import Annotated, Any, Literal

import msgspec
import pydantic
import pytest
from msgspec import Meta

from sparkguard.core.evolution import misfit, outline


def struct(*fields: Any, **more: Any) -> Any:
    """A struct of these fields."""
    return msgspec.defstruct("Account", fields, **more)


class Tree(msgspec.Struct):
    """A type that contains itself."""

    value: int
    children: list[Tree] = []


class Wider(msgspec.Struct):
    """Likewise, with one field more."""

    value: float
    children: list[Wider] = []
    note: str = ""


@dataclasses.dataclass
class Plain:
    """A dataclass."""

    name: str
    at: datetime | None = None


class Other(msgspec.Struct):
    """Something else."""

    name: int


class Model(pydantic.BaseModel):
    """A pydantic model."""

    name: str
    at: datetime | None = None
    more: int = 0


class Color(Enum):
    """Of two."""

    RED = "red"
    BLUE = "blue"


class Extra(pydantic.BaseModel):
    """Takes whatever comes."""

    model_config = {"extra": "allow"}
    a: int = 0


def ge(least: int) -> Any:
    """A whole number that is not lower."""
    return Annotated[int, Meta(ge=least)]


def model(**fields: Any) -> Any:
    """A pydantic model of these fields."""
    return pydantic.create_model("Made", **fields)


def test_a_new_alias() -> None:
    """States are stored by the fields' own names."""
    named = model(a=(int, pydantic.Field(alias="x")))
    assert misfit(outline(named), outline(model(a=(int, pydantic.Field(alias="y"))))) is None
    assert misfit(outline(named), outline(model(b=(int, pydantic.Field(alias="x"))))) is not None


def test_a_type_that_is_met_twice() -> None:
    """That one place had another choice tells nothing of the next."""
    a, d = pydantic.create_model("A", n=(int, ...)), pydantic.create_model("D", d=(int, ...))
    b = pydantic.create_model("B", n=(str, ...))
    c = pydantic.create_model("C", n=(int, 0), m=(int, 0), d=(int, 0))
    before, now = model(x=(a | d, ...), y=(a, ...)), model(x=(b | c, ...), y=(b, ...))
    assert "'n'" in str(misfit(outline(before), outline(now))).replace("x.", "").replace("y.", "")


FITS = [
    (struct(("a", int)), struct(("a", int), ("b", str, ""))),
    (struct(("a", int), ("b", str)), struct(("a", int))),
    (struct(("a", int)), struct(("a", float))),
    (struct(("a", int)), struct(("a", int | None))),
    (struct(("a", int, 0)), struct(("a", int))),
    (struct(("a", Literal["x"])), struct(("a", Literal["x", "y"]))),
    (struct(("a", Color)), struct(("a", str))),
    (struct(("a", int)), struct(("a", Any))),
    (dict[str, int], dict[str, float]),
    (Tree, Wider),
    (Plain, Model),
    (Model, Plain),
    (struct(("a", ge(0))), struct(("a", int))),
    (struct(("a", ge(5))), struct(("a", ge(0)))),
    (struct(("a", Annotated[int, Meta(gt=0)])), struct(("a", ge(1)))),
    (struct(("a", Annotated[str, Meta(max_length=3)])), struct(("a", str))),
    (dict[str, int], dict),
    (struct(("a", int)), dict[str, int]),
    (list[int], set[int]),
    (model(a=(date, ...)), model(a=(str, ...))),
    (Extra, model(a=(int, 0), b=(int, 0))),
]

MISFITS = [
    (struct(("a", int)), struct(("a", int), ("b", str)), "field 'b' was not there, and is now req"),
    (struct(("a", int)), struct(("a", str)), "field 'a' was integer, and is now string"),
    (struct(("a", int | None)), struct(("a", int)), "field 'a' was null, and is now integer"),
    (struct(("a", float)), struct(("a", int)), "field 'a' was number, and is now integer"),
    (struct(("a", list[int])), struct(("a", list[str])), r"field 'a\[\]' was integer"),
    (struct(("a", str)), struct(("a", date)), "field 'a' was string, and is now date"),
    (struct(("a", str)), struct(("a", Color)), "field 'a' may hold any value"),
    (struct(("a", Color)), struct(("a", Literal["red"])), "field 'a' may hold the value 'blue'"),
    (struct(("a", int), ("b", int)), struct(("a", int), forbid_unknown_fields=True), "'b' was th"),
    (struct(("a", int), array_like=True), struct(("a", int), ("b", int), array_like=True), "fewer"),
    (dict[str, int], dict[str, str], r"field '\[\]' was integer, and is now string"),
    (Wider, Tree, "field 'value' was number, and is now integer"),
    (struct(("at", Plain)), struct(("at", Other)), "field 'at.name' was string"),
    (struct(("a", bytes)), struct(("a", str)), "field 'a' was bytes, and is now string"),
    (struct(("a", str)), struct(("a", bytes)), "field 'a' was string, and is now bytes"),
    (model(a=(str, ...)), model(a=(bytes, ...)), "field 'a' was text, and is now bytes"),
    (model(a=(str, ...)), model(a=(datetime, ...)), "field 'a' was text, and is now date-time"),
    (model(a=(datetime, ...)), model(a=(str, ...)), "field 'a' was date-time, and is now text"),
    (dict[str, int], struct(("a", str, "")), "field 'a' was integer, and is now string"),
    (dict, struct(("a", str, "")), "field 'a' was any, and is now string"),
    (dict, dict[str, int], r"field '\[\]' was any, and is now integer"),
    (list, list[int], r"field '\[\]' was any, and is now integer"),
    (struct(("a", str)), dict[str, int], "field 'a' was string, and is now integer"),
    (model(a=(dict[str, int], ...)), model(a=(dict[date, int], ...)), r"'a.\(key\)' was string"),
    (struct(("a", int)), struct(("a", ge(0))), "'a' may hold what is now out of its bounds"),
    (struct(("a", ge(0))), struct(("a", ge(1))), "'a' may hold what is now out of"),
    (struct(("a", float)), struct(("a", Annotated[float, Meta(lt=1)])), "out of its bounds"),
    (struct(("a", str)), struct(("a", Annotated[str, Meta(max_length=3)])), "out of its bounds"),
    (struct(("a", str)), struct(("a", Annotated[str, Meta(pattern="x")])), "pattern 'x' now for"),
    (list[int], Annotated[list[int], Meta(min_length=1)], "the state may hold what is now out"),
]


@pytest.mark.parametrize(("before", "now"), FITS)
def test_what_fits(before: Any, now: Any) -> None:
    """Whatever was stored as the one is read as the other."""
    assert misfit(outline(before), outline(now)) is None


@pytest.mark.parametrize(("before", "now", "said"), MISFITS)
def test_what_does_not(before: Any, now: Any, said: str) -> None:
    """The sentence names the field, and what it was and is."""
    assert re.search(said, misfit(outline(before), outline(now)) or "")


def test_what_no_state_can_be() -> None:
    """A type that msgspec knows nothing of."""
    with pytest.raises(TypeError):
        outline(complex)
