"""A stage: a description that behaves as the undecorated function."""
# ruff: noqa: D103  the undocumented functions are what is decorated, as users write them

import copy
import dataclasses
import functools
import inspect
import pickle
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import cloudpickle
import msgspec
import pytest

from sparkguard.core.failure import Category
from sparkguard.core.record import Record
from sparkguard.errors import StageError
from sparkguard.formats.json import Json
from sparkguard.formats.raw import Raw
from sparkguard.stages.base import CATEGORIES, Stage, record_stage
from sparkguard.stages.deserialize import deserialize
from sparkguard.stages.filter import filter
from sparkguard.stages.flat_map import flat_map
from sparkguard.stages.map import map
from tests.unit.stages import decorated

if TYPE_CHECKING:
    from decimal import Decimal


class Order(msgspec.Struct):
    id: int


class Callee:
    def __call__(self, order: Order) -> Order:
        return order


def plain(order: Order) -> Order:
    """Say what it does."""
    return order


def test_behaves_as_the_function() -> None:
    """A decorated function is called directly in a unit test, and looks like itself."""
    stage = map(plain)
    assert stage(Order(1)) == Order(1)
    assert stage(order=Order(1)) == Order(1)
    assert (stage.__name__, stage.__doc__, stage.__module__) == ("plain", plain.__doc__, __name__)  # type: ignore[attr-defined]
    assert inspect.unwrap(stage) is plain
    assert inspect.signature(stage) == inspect.signature(plain)


def test_bare_or_with_arguments() -> None:
    """Every decorator works bare and with arguments; the name is the function's."""

    def check(order: Order) -> bool:
        return bool(order)

    assert map(plain).name == map()(plain).name == "plain"
    assert map(name="p", returns="a int")(plain).name == "p"
    assert map(name="p", returns="a int")(plain).returns == "a int"
    assert filter(check).name == filter(name="check")(check).name == "check"
    assert flat_map(partial=True)(plain).partial
    assert not flat_map(plain).partial
    assert deserialize(plain).kind == deserialize()(plain).kind == "deserialize"
    assert deserialize(Json(Order)).name == "deserialize"


def test_category_follows_from_kind() -> None:
    """The category is where a stage stands, whatever it raises."""
    found = {kind: Stage(name="s", kind=kind).category for kind in CATEGORIES}
    assert {kind for kind, category in found.items() if category is Category.DESERIALIZATION} == {
        "deserialize"
    }
    assert {kind for kind, category in found.items() if category is Category.PRODUCTION} == {
        "foreach_batch",
        "produce",
    }
    with pytest.raises(StageError, match="no kind of stage"):
        Stage(name="s", kind="reduce")


def test_names() -> None:
    """A function without a name needs one."""
    with pytest.raises(StageError, match="say name="):
        map(lambda x: x)
    assert map(lambda x: x, name="same").name == "same"
    assert map(functools.partial(plain)).name == "plain"
    assert map(Callee(), name="c").signature().input is Order
    with pytest.raises(StageError, match="needs a function, not int"):
        record_stage("map", 3, name="x")  # type: ignore[arg-type]


def test_format_stage_decodes() -> None:
    """A stage made from a format is called like a function of bytes."""
    stage = deserialize(Json(Order), name="decode")
    assert stage(b'{"id":1}') == Order(1)
    assert pickle.loads(pickle.dumps(stage)) == stage
    assert copy.deepcopy(stage)(b'{"id":2}') == Order(2)
    with pytest.raises(StageError, match=r"Stage 'decode': a format says itself"):
        deserialize(Json(Order), name="decode", returns="id long")  # type: ignore[call-overload]
    with pytest.raises(StageError, match=r"Raw\(\)"):
        deserialize(Raw)


@pytest.mark.parametrize("dumps", [pickle.dumps, cloudpickle.dumps])
@pytest.mark.parametrize("name", ["price", "other", "twice"])
def test_importable_stage_goes_by_reference(dumps: Callable[[Any], bytes], name: str) -> None:
    """A stage of an importable module travels by name, so a lock beside it does no harm."""
    stage = getattr(decorated, name)
    data = dumps(stage)
    assert pickle.loads(data) is stage
    assert len(data) < 200
    assert pickle.loads(dumps(decorated.Shop.sell)) is decorated.Shop.sell


def test_changed_stage_goes_by_value() -> None:
    """A stage that is not what its module holds keeps what was changed."""
    changed = dataclasses.replace(decorated.price, name="changed")
    with pytest.raises(Exception, match="not the same object"):
        pickle.dumps(changed)


# --- signatures ----------------------------------------------------------------------------------


def given_record(order: Order, record: Record) -> Order: ...  # type: ignore[empty-body]
def forward(order: "Order") -> "Later": ...  # type: ignore[empty-body]
def optional(order: Order | None) -> Order | None: ...
def anything(order) -> Any: ...  # type: ignore[no-untyped-def]  # noqa: ANN001
def spread(*args: Order) -> Order: ...  # type: ignore[empty-body]
def with_default(order: Order, rate: float = 1.0) -> Order: ...  # type: ignore[empty-body]
def textual_record(order: Order, record: "sg.Record") -> Order: ...  # type: ignore[empty-body, name-defined]  # noqa: F821


class Later(msgspec.Struct):
    id: int


def test_signature_of_map() -> None:
    """Annotations are resolved when a flow is built: forward references work."""
    found = map(plain).signature()
    assert (found.input, found.output, found.wants_record) == (Order, Order, False)
    assert (found.input_optional, found.output_optional) == (False, False)
    assert map(forward).signature().output is Later
    assert map(given_record).signature().wants_record
    assert map(textual_record).signature().wants_record
    assert not map(with_default).signature().wants_record
    assert map(spread).signature().input is Order


def test_signature_tells_what_takes_none() -> None:
    """None is passed to the next stage only if its input type says so."""
    found = map(optional).signature()
    assert found.input_optional
    assert found.output_optional
    assert not map(anything).signature().input_optional
    assert map(anything).signature().input is Any
    assert map(optional, returns="id long").signature().output_optional
    assert map(plain, returns=Later | None).signature().output_optional


def test_signature_of_flat_map() -> None:
    """The output of a flat_map is what its list, tuple or iterator holds."""

    def listed(order: Order) -> list[Later]: ...  # type: ignore[empty-body]
    def generated(order: Order) -> Iterator[Later]:
        yield Later(order.id)

    def iterable(order: Order) -> Iterable[Later]: ...  # type: ignore[empty-body]
    def pairs(order: Order) -> tuple[Later, ...]: ...  # type: ignore[empty-body]

    for function in (listed, generated, iterable, pairs):
        assert flat_map(function).signature().output is Later
    assert flat_map(anything, returns="id long").signature().output == "id long"


def test_signature_of_format() -> None:
    """A format says itself what it gives."""
    found = deserialize(Json(Order)).signature()
    assert (found.input, found.output, found.output_optional) == (bytes, Order, False)
    assert deserialize(Json()).signature().output is Any
    with pytest.raises(StageError, match="Stage 'deserialize': Json cannot read"):
        deserialize(Json(Callee)).signature()


def test_signature_of_local_functions() -> None:
    """A local function's annotations may name what only its scope knows."""

    class Local(msgspec.Struct):
        id: int

    def by_closure(order: "Local") -> Local:
        return Local(1)

    def by_scope(order: "Local") -> "Local": ...  # type: ignore[empty-body]

    for function in (by_closure, by_scope):
        found = map(function).signature()
        assert (found.input, found.output) == (Local, Local)


async def awaited(order: Order) -> Order: ...  # type: ignore[empty-body]
async def streamed(order: Order) -> AsyncIterator[Order]:
    yield order


def generator(order: Order) -> Order:  # type: ignore[misc]
    yield order


def unannotated(order: Order): ...  # type: ignore[no-untyped-def]  # noqa: ANN201
def nothing(order: Order) -> None: ...
def three(a: Order, b: Record, c: int) -> Order: ...  # type: ignore[empty-body]
def keyword(a: Order, *, b: int) -> Order: ...  # type: ignore[empty-body]
def none_at_all() -> Order: ...  # type: ignore[empty-body]
def two(a: Order, b: int) -> Order: ...  # type: ignore[empty-body]
def for_checkers(a: Order) -> "Decimal": ...  # type: ignore[empty-body]
def number(a: Order) -> int: ...  # type: ignore[empty-body]
def bare_list(a: Order) -> list: ...  # type: ignore[type-arg, empty-body]
def uneven(a: Order) -> tuple[int, str]: ...  # type: ignore[empty-body]
def text_in(a: str) -> Order: ...  # type: ignore[empty-body]


@pytest.mark.parametrize(
    ("decorator", "function", "sentence"),
    [
        (map, awaited, "async function"),
        (map, streamed, "async function"),
        (map, functools.partial(awaited), "async function"),
        (map, generator, "use flat_map"),
        (filter, generator, "gives one value"),
        (flat_map, streamed, "async function"),
        (map, unannotated, "no return annotation"),
        (flat_map, unannotated, "no return annotation"),
        (deserialize, unannotated, "parameter is annotated"),
        (map, nothing, "annotated None"),
        (map, three, "too many parameters ('c')"),
        (map, keyword, "too many parameters ('b')"),
        (map, none_at_all, "no parameter"),
        (map, two, "must be annotated sparkguard.Record"),
        (map, for_checkers, "return annotation 'Decimal' cannot be resolved"),
        (flat_map, number, "a flat_map gives a list"),
        (flat_map, bare_list, "Say of what"),
        (flat_map, uneven, "one type"),
        (filter, number, "a filter gives bool"),
        (deserialize, text_in, "gets bytes"),
    ],
)
def test_wrong_functions(decorator: Any, function: Any, sentence: str) -> None:
    """A function that cannot be such a stage is refused before any record is read."""
    stage = decorator(function)
    with pytest.raises(StageError) as caught:
        stage.signature()
    assert sentence in str(caught.value)
    assert str(caught.value).startswith(f"Stage {stage.name!r}: ")
