"""What user code can raise or give, one record at a time."""

import copy
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest

import sparkguard as sg
from sparkguard.core.failure import Failure
from sparkguard.core.letter import Letter
from sparkguard.core.outcome import Fail, Outcome
from sparkguard.core.policy import Budget, Policy, Retry
from sparkguard.handlers.dead_letter import DeadLetterHandler
from sparkguard.handlers.log_and_continue import LogAndContinueHandler
from tests.flow.made import Decides, ListSink, Ran, plan, policy, records, run


class Order(msgspec.Struct):
    id: int
    note: str = ""


class Priced(msgspec.Struct):
    id: int
    total: float


class OwnBase(BaseException):
    """What nobody should derive from BaseException."""


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__

    def __reduce__(self) -> Any:
        raise RuntimeError("no pickle")


decode = sg.deserialize(sg.Json(Order), name="decode")
ORDERS = [b'{"id": %d}' % n for n in range(5)]


def go(
    function: Callable[..., Any],
    *more: Any,
    values: Any = ORDERS,
    returns: Any = "id long, total double",
    **policies: Policy,
) -> tuple[Ran, ListSink]:
    """Orders through a map that gives them a price, and further stages."""
    sink = ListSink()
    price = sg.map(name="price", returns=returns)(function)
    made = plan(decode, price, *more, policies=policies, sinks={"default": sink})
    return run(made, records(values)), sink


def raising(error: BaseException, at: int = 2) -> Callable[[Order], Priced]:
    """A price that fails for one order."""

    def price(order: Order) -> Priced:
        if order.id == at:
            raise error
        return Priced(order.id, 1.0)

    return price


def only(ran: Ran) -> Letter:
    """The letter of order 2, the others having gone on in their order."""
    assert [row["id"] for row in ran.rows] == [0, 1, 3, 4]
    (letter,) = ran.letters
    assert letter.record.value == ORDERS[2]
    assert ran.account.balanced
    return letter


@pytest.mark.parametrize(
    "error",
    [
        StopIteration(),
        RecursionError("too deep"),
        UnprintableError(),
        KeyError("x" * 10_000_000),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "no"),
        ExceptionGroup("two", [ValueError(), KeyError()]),
        ValueError("\ud800 lone"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_one_record_is_one_letter(error: Exception) -> None:
    """P6, P17: whatever an exception is like, its record is a letter and the rest goes on."""
    letter = only(go(raising(error))[0])

    name = type(error).__qualname__
    assert letter.failure.exception_type.rpartition(".")[2] == name.rpartition(".")[2]
    assert len(letter.failure.message) <= 8192


def test_one_exception_for_all() -> None:
    """An exception object that is raised for each bad record gathers no frames of all of them."""
    error = ValueError("always the same")

    def price(order: Order) -> Priced:
        raise error

    values = [b'{"id": %d}' % n for n in range(5000)]
    ran, _ = go(price, values=values)

    assert len(ran.letters) == 5000
    assert error.__traceback__ is None
    assert len({letter.failure.trace for letter in ran.letters}) == 1


def test_letters_keep_their_order() -> None:
    """What can wait (poison, of which the handler lets go) never passes what cannot (an outage)."""

    def price(order: Order) -> Priced:
        if order.id % 7 == 0:
            raise ValueError("poison") if order.id % 2 else ConnectionError("down")
        return Priced(order.id, 1.0)

    values = [b'{"id": %d}' % n for n in range(3000)]
    chosen = policy(on_transient=DeadLetterHandler(), retry=Retry(max_attempts=1))
    ran, sink = go(price, values=values, price=chosen)

    bad = list(range(0, 3000, 7))
    assert [letter.record.offset for letter in sink.written] == bad
    assert [letter.record.value for letter in sink.written] == [values[n] for n in bad]
    assert [row["id"] for row in ran.rows] == [n for n in range(3000) if n % 7]
    assert ran.account.balanced


def test_a_handler_that_may_stop_is_asked_at_once() -> None:
    """A handler that does not promise to go on decides before the next record is tried."""
    tried: list[int] = []

    def price(order: Order) -> Priced:
        tried.append(order.id)
        raise ValueError(f"order {order.id}")

    with pytest.raises(sg.StageFailedError, match=r"orders\[0\]@0"):
        go(price, price=policy(Decides(lambda failure: Fail())))

    assert tried == [0]


def test_a_promise_is_not_inherited() -> None:
    """A subclass of a handler that goes on may stop; it is asked before the next record is."""

    class Stops(DeadLetterHandler):
        def decide(self, failure: Failure) -> Outcome:
            return Fail() if failure.message == "order 3" else super().decide(failure)

    tried: list[int] = []

    def price(order: Order) -> Priced:
        tried.append(order.id)
        raise ValueError(f"order {order.id}")

    with pytest.raises(sg.StageFailedError, match="order 3"):
        go(price, price=policy(Stops()))

    assert tried == [0, 1, 2, 3]


def test_one_exception_for_a_record_and_for_an_element() -> None:
    """P17: what was put aside takes no trace from what is judged at once, be it one object."""
    error = ValueError("always the same")

    def parts(order: Order) -> Any:
        if order.id == 0:
            raise error
        return numbered(order.id)

    def numbered(count: int) -> Any:
        for n in range(count):
            if n == 1:
                raise error
            yield Priced(n, 1.0)

    stage = sg.flat_map(parts, name="parts", returns="id long, total double", partial=True)
    made = plan(decode, stage, sinks={"default": ListSink()})
    ran = run(made, records(ORDERS[:3]))

    assert [letter.failure.path for letter in ran.letters] == ["", "parts[1]"]
    assert all(
        "in parts" in letter.failure.trace or "in numbered" in letter.failure.trace
        for letter in ran.letters
    )


def test_endless_recursion() -> None:
    """P6: a stack that is full in one record is empty again in the next."""

    def price(order: Order) -> Priced:
        return price(order) if order.id == 2 else Priced(order.id, 1.0)

    assert only(go(price)[0]).failure.exception_type == "RecursionError"


@pytest.mark.parametrize(
    "error",
    [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), OwnBase("own"), MemoryError()],
    ids=lambda error: type(error).__name__,
)
def test_what_is_no_ordinary_exception_is_fatal(error: BaseException) -> None:
    """P11: it fails the task with cause fatal, as an ordinary exception."""
    with pytest.raises(sg.StageFailedError, match="'price' of flow 'flow' failed at orders") as got:
        go(raising(error))

    assert got.value.facts["cause"] == "fatal"
    assert got.value.facts["action"] == "fail"
    assert got.value.facts["offset"] == 2


def test_the_code_is_wrong() -> None:
    """P10: a name that does not exist fails the task; the record is nobody's dead letter."""

    def price(order: Order) -> Priced:
        return prize(order)  # type: ignore[name-defined,no-any-return]  # noqa: F821

    with pytest.raises(sg.StageFailedError, match="name 'prize' is not defined") as got:
        go(price)

    assert got.value.facts["cause"] == "programming"


# --- what a function gives ----------------------------------------------------------------------


def test_none_in_the_middle_is_the_fault_of_who_gave_it() -> None:
    """P6: the stage that returned None is blamed, not the one that stumbled over it."""

    def price(order: Order) -> Priced:
        return None if order.id == 2 else Priced(order.id, 1.0)  # type: ignore[return-value]

    @sg.filter
    def blind(priced: Priced) -> bool:
        return True

    @sg.map
    def tax(priced: Priced) -> Priced:
        return Priced(priced.id, priced.total * 1.2)

    letter = only(go(price, blind, tax, returns=Priced)[0])

    assert letter.failure.stage == "price"
    assert letter.failure.message == "The stage 'price' returned None."


def test_none_at_the_end() -> None:
    """P6: a map that returns None for one record is that record's failure, in a sentence."""
    letter = only(go(lambda order: None if order.id == 2 else Priced(order.id, 1.0))[0])

    assert letter.failure.stage == "price"
    assert letter.failure.category is sg.Category.PROCESSING
    assert "got None" in letter.failure.message


def test_a_wrong_type_for_one_record() -> None:
    """P6: the failure names field, type and value; Spark's own would be a `getInt`."""
    letter = only(go(lambda o: {"id": o.id, "total": "much" if o.id == 2 else 1.0})[0])

    said = letter.failure.message
    assert letter.failure.stage == "price"
    assert "'total'" in said
    assert "double" in said
    assert "'much'" in said


def test_a_wrong_type_behind_a_filter_is_the_makers_fault() -> None:
    """P6: the last stage that made the value is blamed."""

    @sg.filter
    def every(row: dict[str, Any]) -> bool:
        return True

    letter = only(go(lambda o: {"id": "x" if o.id == 2 else o.id, "total": 1.0}, every)[0])

    assert letter.failure.stage == "price"


def test_many_wrong_types_are_as_many_letters() -> None:
    """P6: misfits are found by halves, none twice and none of the good ones."""
    values = [b'{"id": %d}' % n for n in range(1000)]

    ran, _ = go(lambda o: {"id": o.id, "total": "x" if o.id % 97 == 3 else 1.0}, values=values)

    bad = {n for n in range(1000) if n % 97 == 3}
    assert {letter.record.offset for letter in ran.letters} == bad
    assert [row["id"] for row in ran.rows] == [n for n in range(1000) if n not in bad]
    assert ran.account.balanced


def test_a_flat_map_that_gives_no_iterable() -> None:
    """P6: what cannot be iterated is that record's failure."""

    @sg.flat_map(returns="id long, total double")
    def split(row: dict[str, Any]) -> Any:
        return 7 if row["id"] == 2 else [row]

    letter = only(go(lambda o: {"id": o.id, "total": 1.0}, split)[0])

    assert letter.failure.stage == "split"


def test_a_filter_that_gives_no_bool() -> None:
    """P6: a filter's answer counts as Python counts it, and an array's truth cannot be asked."""

    @sg.filter
    def keep(row: dict[str, Any]) -> Any:
        return {0: 0, 1: "yes", 2: np.array([1, 0]), 3: None, 4: np.True_}[row["id"]]

    ran, _ = go(lambda o: {"id": o.id, "total": 1.0}, keep)

    assert [row["id"] for row in ran.rows] == [1, 4]
    assert "ambiguous" in ran.letters[0].failure.message
    assert [letter.record.offset for letter in ran.letters] == [2]
    assert ran.account.stages["keep"]["filtered"] == 2
    assert ran.account.balanced


# --- null values --------------------------------------------------------------------------------


def test_a_tombstone_passes_where_none_is_welcome() -> None:
    """A null value is handed on as None if the next stage's type says so, in its place."""

    @sg.map
    def price(order: Order | None) -> Priced:
        return Priced(-1, 0.0) if order is None else Priced(order.id, 1.0)

    made = plan(decode, price)
    ran = run(made, records([ORDERS[0], None, ORDERS[1]]))

    assert [row["id"] for row in ran.rows] == [0, -1, 1]


@pytest.mark.parametrize("on_null", ["pass", "fail", "skip"])
def test_a_tombstone_nobody_takes(on_null: Any) -> None:
    """P1: it is a failure with a sentence, or counted as skipped."""
    values = [ORDERS[0], None, None, ORDERS[1]]

    ran, _ = go(raising(ValueError(), at=9), values=values, decode=policy(on_null=on_null))

    assert len(ran.rows) == 2
    assert ran.account.balanced
    if on_null == "skip":
        assert ran.account.stages["decode"]["skipped"] == 2
    else:
        assert [letter.record.offset for letter in ran.letters] == [1, 2]
        assert all("tombstone" in letter.failure.message for letter in ran.letters)
        assert all(letter.record.value is None for letter in ran.letters)


def test_an_empty_value_is_no_tombstone() -> None:
    """P6: an empty value is bytes that do not parse."""
    ran, _ = go(raising(ValueError(), at=9), values=[b"", ORDERS[1]])

    (letter,) = ran.letters
    assert letter.record.value == b""
    assert letter.failure.stage == "decode"
    assert letter.failure.message == "The value is empty"


# --- handlers -----------------------------------------------------------------------------------


def broken(failure: Failure) -> Any:
    """A handler that fails itself."""
    raise LookupError("the handler is lost")


@pytest.mark.parametrize(
    ("decision", "said"),
    [
        (broken, "raised LookupError instead of deciding"),
        (lambda _: True, "returned bool, which is no outcome"),
        (lambda _: None, "returned NoneType, which is no outcome"),
        (lambda _: sg.DeadLetter, "returned type, which is no outcome"),
    ],
)
def test_a_handler_that_does_not_decide(decision: Any, said: str) -> None:
    """P13: the task fails, and the record's own exception is the cause that is shown."""
    first = ValueError("the first error")

    with pytest.raises(sg.StageFailedError, match=said) as got:
        go(raising(first), price=policy(Decides(decision)))

    assert got.value.action == "fail"
    assert got.value.__cause__ is first
    assert "the first error" in str(got.value)


def test_an_exception_chooses_its_handler() -> None:
    """P6: routing by exception sees subclasses, and the others go to the stage's handler."""
    chosen = policy(by_exception=(("LookupError", LogAndContinueHandler()),))

    def price(order: Order) -> Priced:
        if order.id in (1, 3):
            raise KeyError if order.id == 1 else ValueError
        return Priced(order.id, 1.0)

    ran, _ = go(price, price=chosen)

    assert [letter.record.offset for letter in ran.letters] == [3]
    counts = ran.account.stages["price"]
    assert (counts["skipped"], counts["dead_lettered"]) == (1, 1)


def test_a_sink_that_nobody_knows() -> None:
    """P2: a handler that names a sink that is not there fails the task; no record is dropped."""
    with pytest.raises(sg.StageFailedError, match="no such sink in the settings") as got:
        go(raising(ValueError()), price=policy(DeadLetterHandler("elsewhere")))

    assert got.value.action == "fail"


# --- budget -------------------------------------------------------------------------------------


def test_the_budget_ends_a_task_at_once() -> None:
    """P5: over its budget the stage fails within the batch, long before all its records failed."""
    values = [b'{"id": 1}'] * 10_000
    sink = ListSink()
    price = sg.map(raising(ValueError(), at=1), name="price")
    chosen = policy(budget=Budget(max_ratio=0.1, window=1000))
    made = plan(decode, price, policies={"price": chosen}, sinks={"default": sink})

    with pytest.raises(sg.StageFailedError, match=r"its budget is 0\.1 of 1,000") as got:
        run(made, records(values))

    assert got.value.action == "fail"
    assert len(sink.written) <= 1001
    assert not sink.stored


def test_the_budget_spans_arrow_batches() -> None:
    """P5: many small batches are one window."""
    price = sg.map(raising(ValueError(), at=1), name="price")
    chosen = policy(budget=Budget(max_ratio=0.1, window=1000))
    made = plan(decode, price, policies={"price": chosen}, sinks={"default": ListSink()})
    batches = [records([b'{"id": 1}'] * 10, first=at) for at in range(0, 2000, 10)]

    with pytest.raises(sg.StageFailedError, match="budget"):
        run(made, *batches)


def test_few_failures_are_within_the_budget() -> None:
    """P5: one bad record of one says nothing."""
    price = sg.map(raising(ValueError(), at=1), name="price")
    chosen = policy(budget=Budget(max_ratio=0.1, window=1000))
    made = plan(decode, price, policies={"price": chosen}, sinks={"default": ListSink()})

    ran = run(made, records([b'{"id": 1}']))

    assert len(ran.letters) == 1


def test_a_letter_holds_what_can_be_copied() -> None:
    """P17: the failure in a letter travels though its exception cannot."""
    letter = only(go(raising(UnprintableError()))[0])

    assert copy.deepcopy(letter) == letter
