"""How a stateful stage is declared, and what is said of one that cannot be."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, TypedDict, Union

import msgspec
import pydantic
import pytest

import sparkguard as sg
from sparkguard.core.evolution import outline
from sparkguard.core.keyed import Keyed
from sparkguard.core.policy import Policy
from sparkguard.driver.state import State as Folder
from sparkguard.errors import ConfigError, StageError
from sparkguard.keyed import check_columns, check_event, check_stored, emitted_shape, with_versions
from tests.flow.made import policy


class State(msgspec.Struct):
    """What is known."""

    count: int = 0


class Event(msgspec.Struct):
    """What happened."""

    id: str


class Other(msgspec.Struct):
    """Is known by another stage."""

    total: int = 0


class Hidden(pydantic.BaseModel):
    """Has a field that is never dumped."""

    name: str = ""
    secret: str = pydantic.Field("", exclude=True)


class Typed(TypedDict, total=False):
    """No update."""

    name: str


@pydantic.dataclasses.dataclass
class Shown:
    """Of a dataclass all fields are stored."""

    name: str = pydantic.Field("", exclude=True)


class Hides(msgspec.Struct):
    """Has one inside."""

    itself: Hides | None = None
    held: dict[str, list[Hidden]] = {}


async def later(state: Any, now: Any) -> Any:
    """Nobody would await it."""


def count(state: State | None, event: Event) -> sg.Update[State, Event]:
    """One more."""
    return sg.Update(state=State(1 + (state.count if state else 0)), emit=[event])


def test_called_directly() -> None:
    """A stage behaves as the undecorated function."""
    stage = sg.stateful(key="id", state=State)(count)
    update = stage(None, Event("a"))
    assert update == sg.Update(state=State(1), emit=[Event("a")])
    assert (stage.name, stage.kind, stage.category) == ("count", "stateful", sg.Category.PROCESSING)
    assert emitted_shape(stage).ddl == "struct<id:string>"
    with pytest.raises(AttributeError):
        update.state = None  # type: ignore[misc]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"key": ""}, "key= names the column"),
        ({"first": 1}, "first= is of a sequence: say sequence="),
        ({"sequence": "id", "first": 2**63}, "is no 64-bit number"),
        ({"remember": -1}, "remember= cannot be negative"),
        ({"buffer": -1}, "buffer= cannot be negative"),
        ({"gap_timeout": timedelta(0)}, "gap_timeout= must be longer"),
        ({"gap_timeout": 300}, "gap_timeout= is a timedelta, .*not 300"),
        ({"ttl": 60}, "ttl= is a timedelta"),
        ({"remember": "x"}, "remember= is a whole number, not 'x'"),
        ({"sequence": "id", "first": "1"}, "first= is a whole number, not '1'"),
        ({"key": ["a", "b"]}, r"key= is the name of one column, not \['a', 'b'\]"),
        ({"event_id": 5}, "event_id= is the name of one column"),
        ({"on_timer": 5}, r"on_timer= is a function of \(state, now\), not 5"),
        ({"on_timer": lambda state: None}, r"on_timer= must take two arguments, \(state, now\)"),
        ({"on_timer": later}, "on_timer= is an async"),
        ({"state": None}, "state= is the type of a key's state, not None"),
        ({"state": "State"}, "state= is the type of a key's state, not 'State'"),
        ({"state": Hidden}, "field 'Hidden.secret' has exclude="),
        ({"state": Hides}, "field 'Hidden.secret' has exclude="),
        ({"ttl": timedelta(0)}, "ttl= must be longer"),
    ],
)
def test_what_does_not_fit_together(options: dict[str, Any], said: str) -> None:
    """Said when it is decorated, with the stage's name."""
    with pytest.raises(StageError, match=f"Stage 'count': .*{said}"):
        sg.stateful(**{"key": "id", "state": State, **options})(count)


def test_a_dataclass_of_pydantic_hides_nothing() -> None:
    """Msgspec takes its fields itself, excluded or not."""
    assert sg.stateful(key="id", state=Shown, returns=Event)(bare_of_all).keyed is not None


def bare_of_all(state: Any, event: Event) -> Any:
    """Says nothing of its state."""


def bare(state: State | None, event: Event) -> sg.Update:  # type: ignore[type-arg]
    """Does not say what it emits."""
    return sg.Update(state=state)


def alone(event: Event) -> sg.Update[State, Event]:
    """Takes no state."""
    return sg.Update(state=None)


def swapped(event: Event, state: State | None) -> sg.Update[State, Event]:
    """The event first."""
    return sg.Update(state=state)


def mistaken(state: Other | None, event: Event) -> sg.Update[State, Event]:
    """Another state."""
    return sg.Update(state=None)


def other(state: State | None, event: Event) -> sg.Update[Other, Event]:
    """Gives another state."""
    return sg.Update(state=None)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (bare, "say what it emits: returns=Report"),
        (alone, r"two arguments, \(state, event\)"),
        (swapped, r"parameters are swapped: the state comes first"),
        (mistaken, "first parameter is annotated Other, and state= is State"),
        (other, r"annotated to give Update\[Other, …\], and state= is State"),
    ],
)
def test_what_its_function_must_say(function: Any, said: str) -> None:
    """Said when it is bound, with the stage's name."""
    with pytest.raises(StageError, match=said):
        emitted_shape(sg.stateful(key="id", state=State)(function))
    with pytest.raises(StageError, match=r"takes a stage made by sg\.stateful"):
        emitted_shape(sg.map(count, name="count", returns=Event))


def test_settings_that_would_not_be_kept() -> None:
    """Said by the guard, before anything is read."""
    settings = sg.Settings(stages={"count": {"record_timeout": "1s"}})
    with pytest.raises(ConfigError, match="'record_timeout' bounds"):
        sg.Guard(settings).stateful(sg.stateful(key="id", state=State)(count))


def _deciding(given: Policy) -> dict[str, str]:
    return {name.rpartition(".")[2]: type(handler).__name__ for name, handler in given.by_exception}


def test_who_decides_about_versions() -> None:
    """The defaults, unless the settings name the class or the one above them all."""
    duplicate, fail = "sparkguard.errors.DuplicateError", policy().on_fatal
    assert _deciding(with_versions(policy())) == {
        "DuplicateError": "LogAndContinueHandler",
        "StaleError": "LogAndContinueHandler",
        "GapError": "DeadLetterHandler",
        "ConflictError": "DeadLetterHandler",
    }
    one = with_versions(policy(by_exception=((duplicate, fail),)))
    assert _deciding(one)["DuplicateError"] == "FailHandler"
    assert _deciding(one)["StaleError"] == "LogAndContinueHandler"
    above = policy(by_exception=(("sparkguard.errors.VersionError", fail),))
    assert with_versions(above) == above


class Open(msgspec.Struct, tag=True):
    """One of two states."""


class Closed(msgspec.Struct, tag=True):
    """The other one."""


SPELLED = [
    Open | Closed,
    Union[Open, Closed],  # noqa: UP007  another spelling
    Open | Closed | None,
    Annotated[Open | Closed, "told"],
]


@pytest.mark.parametrize("state", SPELLED)
def test_a_state_of_several_types(state: Any) -> None:
    """Each way to spell it is the same, and a third type is none of them."""

    def step(given: Open | Closed | None, event: Event) -> sg.Update[Open | Closed, Event]:
        return sg.Update(state=given or Open())

    def one(given: Open | None, event: Event) -> sg.Update[Open, Event]:
        return sg.Update(state=given or Open())

    def wrong(given: State | None, event: Event) -> sg.Update[State, Event]:
        return sg.Update(state=given)

    for function in (step, one):
        assert (
            emitted_shape(sg.stateful(key="id", state=state)(function)).ddl == "struct<id:string>"
        )
    with pytest.raises(StageError, match="first parameter is annotated State"):
        emitted_shape(sg.stateful(key="id", state=state)(wrong))


def test_what_it_is_annotated_to_give() -> None:
    """With returns= too, it gives an Update; what says nothing is fine."""

    def wrong(state: State | None, event: Event) -> Event:
        return event

    def silent(state, event):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
        """Says nothing."""

    def wider(state: Any, event: dict[str, Any]) -> Any:
        """Says little."""

    def typed(state: State | None, event: Event) -> Typed:
        return Typed()

    declared = sg.stateful(key="id", state=State, returns=Event)
    for other in (wrong, typed):
        with pytest.raises(StageError, match=r"gives sparkguard.Update, and is annotated .* "):
            emitted_shape(declared(other))
    for function in (count, bare, silent, wider):
        assert emitted_shape(declared(function)).ddl == "struct<id:string>"


def test_without_parentheses() -> None:
    """What is missing is said, and not that there is an argument too many."""
    with pytest.raises(TypeError, match=r"missing 2 required keyword-only .*'key' and 'state'"):
        sg.stateful(count)  # type: ignore[call-arg,arg-type]
    with pytest.raises(StageError, match="decorates with parentheses only"):
        sg.stateful(count, key="id", state=State)(count)  # type: ignore[arg-type]


def test_two_stages_of_one_name() -> None:
    """They would share ledger and states; the same one again is a cell that runs again."""
    guard = sg.Guard()
    guard.stateful(sg.stateful(key="id", state=State)(count))
    guard.stateful(sg.stateful(key="id", state=State)(count))
    with pytest.raises(StageError, match="another flow named 'count'"):
        guard.stateful(sg.stateful(key="id", state=State, name="count", returns=Event)(bare))
    with pytest.raises(StageError, match="another flow named 'count'"):
        guard.flow(sg.map(len, name="count", returns=int), name="count")


def test_the_columns_of_its_frame() -> None:
    """Each once, and of a type that a key or a number may have."""
    keyed = sg.stateful(key="id", state=State, sequence="n")(count).keyed
    assert keyed is not None
    good = [("id", "string"), ("n", "int"), ("x", "string"), ("x", "int")]
    check_columns("count", keyed, good)
    with pytest.raises(StageError, match="'id', and the frame has several of that name"):
        check_columns("count", keyed, [*good, ("id", "int")])
    with pytest.raises(StageError, match="'n', which the frame has not"):
        check_columns("count", keyed, [("id", "string")])
    with pytest.raises(StageError, match="'n' is double and must be a whole number"):
        check_columns("count", keyed, [("id", "string"), ("n", "double")])


class Named(msgspec.Struct, rename="camel"):
    """Needs one column, by either name."""

    order_id: str
    note: str = ""


def test_what_each_event_needs() -> None:
    """Otherwise each would be a letter."""
    for event, columns in (
        (Named, ["order_id"]),
        (Named, ["orderId", "more"]),
        (dict, []),
        (Any, []),
        (Hidden, []),
        (Typed, []),
    ):
        check_event("count", event, columns)
    for needing in (Named, dataclasses.make_dataclass("Made", [("orderId", str)])):
        with pytest.raises(StageError, match="'orderId', which the frame has not; it has: note"):
            check_event("count", needing, ["note"])


def _declared(**more: Any) -> Keyed:
    keyed = sg.stateful(**{"key": "id", "state": State, **more})(count).keyed
    assert keyed is not None
    return keyed


@pytest.mark.parametrize(
    ("now", "key", "said"),
    [
        ({}, "bigint", "its keys were string, and are now bigint"),
        ({"ttl": timedelta(1)}, "string", "made without ttl=, and the stage is now with"),
        ({"on_timer": lambda state, now: None}, "string", "without any of on_timer=, first= and"),
        ({"sequence": "n", "first": 1}, "string", "without any of on_timer="),
    ],
)
def test_what_a_checkpoint_fixes(tmp_path: Path, now: Any, key: str, said: str) -> None:
    """In our words, before Spark says it in its own; nothing is noted then."""
    state = Folder(str(tmp_path))
    check_stored(state, "count", _declared(), "string")
    noted = state.load("stateful/count")
    with pytest.raises(ConfigError, match=f"{said}.*new checkpoint, and delete stateful/count"):
        check_stored(state, "count", _declared(**now), key)
    assert state.load("stateful/count") == noted
    check_stored(state, "count", _declared(sequence="n", remember=5), "string")


def test_what_waits_beside_a_ttl_is_fixed(tmp_path: Path) -> None:
    """P1: without `first=` nobody would read the events that wait there."""
    state, forgets = Folder(str(tmp_path)), {"sequence": "n", "ttl": timedelta(1)}
    check_stored(state, "count", _declared(first=1, **forgets), "string")
    with pytest.raises(ConfigError, match="made with first= beside ttl="):
        check_stored(state, "count", _declared(**forgets), "string")


def test_a_note_that_knows_only_types(tmp_path: Path) -> None:
    """As it was written before: the types count, the rest is noted from now on."""
    state = Folder(str(tmp_path))
    state.store("stateful/count", [outline(State)])
    check_stored(state, "count", _declared(ttl=timedelta(1)), "string")
    with pytest.raises(ConfigError, match="was made with ttl="):
        check_stored(state, "count", _declared(), "string")

    state.store("stateful/count", [outline(State)])
    narrow = msgspec.defstruct("Narrow", [("count", str)])
    with pytest.raises(ConfigError, match="field 'count' was integer, and is now string"):
        check_stored(state, "count", _declared(state=narrow), "string")


def test_a_note_is_made_once(tmp_path: Path) -> None:
    """However often the query starts, and though a default is NaN."""
    state = Folder(str(tmp_path))
    odd = msgspec.defstruct("Odd", [("ratio", float, float("nan"))])
    for _ in range(3):
        check_stored(state, "count", _declared(state=odd), "string")
    assert len(state.load("stateful/count")["types"]) == 1
