"""Any records through any policies, against the simplest program that says what should happen."""

import copy
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sparkguard as sg
from sparkguard.core.failure import Cause
from sparkguard.core.letter import Letter
from sparkguard.core.policy import Handler, Policy
from sparkguard.executor import batch_run
from sparkguard.handlers.dead_letter import DeadLetterHandler
from sparkguard.handlers.fail import FailHandler
from sparkguard.handlers.log_and_continue import LogAndContinueHandler
from tests.flow.made import TOPIC, ListSink, plan, policy, records, run

STAGES = ("decode", "price", "split", "weigh", "worth_it")
HANDLERS: dict[str, Handler] = {
    "skipped": LogAndContinueHandler(),
    "dead_lettered": DeadLetterHandler(),
    "failed": FailHandler(),
}


class UnprintableError(Exception):
    """Neither its text nor its pickle can be had."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    def __reduce__(self) -> Any:
        raise RuntimeError("no pickle")


class Part(msgspec.Struct):
    """One element, and what is to happen to it.

    Attributes:
        split, weigh, keep: ``ok``, or what goes wrong there; ``no`` where it is filtered.
    """

    split: str = "ok"
    weigh: str = "ok"
    keep: str = "ok"


class Order(msgspec.Struct):
    id: int
    price: str = "ok"
    parts: list[Part] = []


class Piece(msgspec.Struct):
    id: int
    at: int
    part: Part


class Weighed(msgspec.Struct):
    id: int
    at: int
    keep: str


def happen(what: str) -> None:
    """Do what a record says."""
    match what:
        case "raise":
            raise ValueError("told so")
        case "stop":
            raise StopIteration
        case "deep":
            happen("deep")
        case "odd":
            raise UnprintableError
        case "copy":
            copy.copy(UnprintableError())
        case _:
            return


WRONG = ("raise", "stop", "deep", "odd", "copy")


def _price(order: Order) -> Order:
    happen(order.price)
    return None if order.price == "none" else order  # type: ignore[return-value]


def _split(order: Order) -> Iterator[Piece]:
    # StopIteration inside a generator becomes a RuntimeError: a failure either way.
    for at, part in enumerate(order.parts):
        happen(part.split)
        yield Piece(order.id, at, part)


def _weigh(piece: Piece, record: sg.Record) -> Weighed:
    assert record.key == b"\xffk%d" % piece.id
    assert record.offset == piece.id
    happen(piece.part.weigh)
    at: Any = "first" if piece.part.weigh == "type" else piece.at
    return Weighed(piece.id, at, piece.part.keep)


def _worth_it(weighed: Weighed) -> bool:
    happen(weighed.keep)
    return weighed.keep != "no"


def stages(*, partial: bool) -> list[Any]:
    """Every kind of stage, each of which does what the record says."""
    return [
        sg.deserialize(sg.Json(Order), name="decode"),
        sg.map(_price, name="price"),
        sg.flat_map(_split, name="split", partial=partial),
        sg.map(_weigh, name="weigh"),
        sg.filter(_worth_it, name="worth_it"),
    ]


@dataclass
class Expected:
    """What should become of all records."""

    rows: list[tuple[int, int]] = field(default_factory=list)
    facts: Counter[tuple[str, str]] = field(default_factory=Counter)
    letters: list[tuple[int, str, str]] = field(default_factory=list)
    out: int = 0
    fails: bool = False


class Oracle:
    """One record after the other, one stage after the other."""

    def __init__(self, ends: dict[str, str], *, partial: bool) -> None:
        self.ends = ends
        self.partial = partial
        self.found = Expected()

    def record(self, offset: int, value: bytes | None) -> None:
        order = self._decoded(value)
        if order is None:
            self._gone(offset, "decode")
        elif order.price != "ok":
            self._gone(offset, "price")
        elif self.partial:
            self._partial(offset, order)
        else:
            self._whole(offset, order)

    def _decoded(self, value: bytes | None) -> Order | None:
        try:
            return None if value is None else msgspec.json.decode(value, type=Order)
        except msgspec.MsgspecError:
            return None

    def _whole(self, offset: int, order: Order) -> None:
        parts = order.parts
        for stage, wrong in (
            ("split", [p for p in parts if p.split != "ok"]),
            ("weigh", [p for p in parts if p.weigh not in ("ok", "type")]),
            ("worth_it", [p for p in parts if p.keep in WRONG[:4]]),
            # The output type is checked behind the last stage, and `weigh` made the value.
            ("weigh", [p for p in parts if p.weigh == "type" and p.keep in ("ok", "copy")]),
        ):
            if wrong:
                self._gone(offset, stage)
                return
        self._out(offset, [at for at, part in enumerate(parts) if part.keep != "no"], parts)

    def _partial(self, offset: int, order: Order) -> None:
        # A generator that raised is over: what it gave before goes on.
        ended = next((at for at, p in enumerate(order.parts) if p.split != "ok"), None)
        parts = order.parts[:ended]
        broken: list[tuple[str, str]] = []
        if ended is not None:
            broken.append(("split", f"split[{ended}]"))
        alive = []
        for stage in ("weigh", "worth_it", "type"):
            for at, part in enumerate(parts):
                path = f"split[{at}]"
                early = part.weigh not in ("ok", "type")
                late = not early and part.keep in WRONG[:4]
                if stage == "weigh" and early:
                    broken.append(("weigh", path))
                elif stage == "worth_it" and late:
                    broken.append(("worth_it", path))
                elif stage == "type" and not early and not late and part.keep != "no":
                    if part.weigh == "type":
                        broken.append(("weigh", path))
                    else:
                        alive.append(at)
        for stage, path in broken:
            self._end(offset, stage, path)
            self.found.facts[stage, "elements"] += 1
        if alive or not broken:
            self._out(offset, alive, parts)
        else:
            self.found.facts[broken[0][0], self.ends[broken[0][0]]] += 1

    def _out(self, offset: int, alive: list[int], parts: list[Part]) -> None:
        self.found.rows.extend((offset, at) for at in alive)
        if alive:
            self.found.out += 1
        else:
            self.found.facts["worth_it" if parts else "split", "filtered"] += 1

    def _gone(self, offset: int, stage: str) -> None:
        self._end(offset, stage, "")
        self.found.facts[stage, self.ends[stage]] += 1

    def _end(self, offset: int, stage: str, path: str) -> None:
        if self.ends[stage] == "dead_lettered":
            self.found.letters.append((offset, stage, path))
        self.found.fails |= self.ends[stage] == "failed"


KEEPS = st.sampled_from(["ok", "ok", "no", *WRONG[:4]])
PARTS = st.builds(
    Part,
    split=st.sampled_from(["ok"] * 8 + list(WRONG[:4])),
    weigh=st.sampled_from(["ok"] * 4 + ["type", *WRONG[:4]]),
    keep=KEEPS,
)
ORDERS = st.builds(
    Order,
    id=st.just(0),
    price=st.sampled_from(["ok"] * 8 + ["none", *WRONG]),
    parts=st.lists(PARTS, max_size=4),
)
VALUES = st.one_of(
    ORDERS, ORDERS, ORDERS, st.sampled_from([None, b"", b"{", b"\xff\xfe", b'{"id": "x"}'])
)
ENDS = st.fixed_dictionaries(
    {stage: st.sampled_from(["skipped", "dead_lettered", "dead_lettered"]) for stage in STAGES}
)


def encoded(values: list[Any]) -> list[bytes | None]:
    """The orders as JSON, each with its own offset as id."""
    return [
        msgspec.json.encode(msgspec.structs.replace(value, id=n))
        if isinstance(value, Order)
        else value
        for n, value in enumerate(values)
    ]


def policies(ends: dict[str, str]) -> dict[str, Policy]:
    """The policy of each stage that ends failures so."""
    return {stage: policy(HANDLERS[end]) for stage, end in ends.items()}


def facts_of(letter: Letter) -> tuple[int, str, str]:
    """Where a letter belongs."""
    return letter.record.offset or 0, letter.failure.stage, letter.failure.path


@given(
    values=st.lists(VALUES, max_size=30).map(encoded),
    ends=ENDS,
    partial=st.booleans(),
    size=st.integers(min_value=1, max_value=12),
    at_once=st.sampled_from([1, 3, 2000]),
)
@settings(max_examples=300)
def test_every_record_ends_where_it_should(
    values: list[bytes | None], ends: dict[str, str], partial: bool, size: int, at_once: int
) -> None:
    """P1, P3, P6: rows in order, one letter each byte for byte, and counts that add up.

    Whatever the Arrow batches and the parts of them that go through all stages at once.
    """
    oracle = Oracle(ends, partial=partial)
    for offset, value in enumerate(values):
        oracle.record(offset, value)
    expected, sink = oracle.found, ListSink()
    made = plan(*stages(partial=partial), policies=policies(ends), sinks={"default": sink})
    batches = [records(values[at : at + size], first=at) for at in range(0, len(values), size)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch_run, "_AT_ONCE", at_once)
        ran = run(made, *batches)

    assert [(row["id"], row["at"]) for row in ran.rows] == expected.rows
    assert Counter(map(facts_of, ran.letters)) == Counter(expected.letters)
    assert len({letter.id for letter in ran.letters}) == len(ran.letters)
    for letter in ran.letters:
        offset = letter.record.offset or 0
        assert letter.record.value == values[offset]
        assert letter.record.key == b"\xffk%d" % offset
        assert letter.record.headers == (("n", b"%d" % offset), ("n", None))
        assert (letter.record.topic, letter.record.partition) == (TOPIC, 0)
        assert letter.failure.cause is Cause.POISON
    counted = {
        (stage, fact): count
        for stage, facts in ran.account.stages.items()
        for fact, count in facts.items()
        if count and fact in ("filtered", "skipped", "dead_lettered", "elements")
    }
    assert counted == dict(expected.facts)
    for stage, facts in ran.account.stages.items():
        stored = sum(letter.failure.stage == stage for letter in ran.letters)
        assert stored == facts["dead_lettered"] + facts["extra_letters"]
    assert ran.account.records_in == len(values)
    assert ran.account.records_out == expected.out
    assert ran.account.rows_out == len(expected.rows)
    assert ran.account.balanced


@given(
    values=st.lists(VALUES, max_size=20).map(encoded),
    ends=ENDS,
    failing=st.sampled_from(STAGES),
    partial=st.booleans(),
)
def test_fail_fails_and_only_where_it_is_asked(
    values: list[bytes | None], ends: dict[str, str], failing: str, partial: bool
) -> None:
    """P1: a stage whose handler is fail ends the task, and nothing of it is counted."""
    ends = {**ends, failing: "failed"}
    oracle = Oracle(ends, partial=partial)
    for offset, value in enumerate(values):
        oracle.record(offset, value)
    made = plan(*stages(partial=partial), policies=policies(ends), sinks={"default": ListSink()})
    batch = records(values)

    if not oracle.found.fails:
        assert [(row["id"], row["at"]) for row in run(made, batch).rows] == oracle.found.rows
        return
    with pytest.raises(sg.StageFailedError, match=f"Stage '{failing}' of flow 'flow'") as raised:
        run(made, batch)
    assert raised.value.facts["stage"] == failing
    assert raised.value.facts["action"] == "fail"
