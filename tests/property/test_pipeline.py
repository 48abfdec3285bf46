"""A whole pipeline of any records, under any policies, with any faults, against a plain loop."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
from hypothesis import example, given, settings
from hypothesis import strategies as st

import sparkguard as sg
from sparkguard.core.policy import Handler, Retry
from sparkguard.handlers.dead_letter import DeadLetterHandler
from sparkguard.handlers.fail import FailHandler
from sparkguard.handlers.log_and_continue import LogAndContinueHandler
from tests.flow.made import DEFAULTS, ListSink, plan, policy
from tests.property.model import (
    BATCH_FAULTS,
    DRIVER_FAULTS,
    TASK_FAULTS,
    Fault,
    Log,
    World,
)

HANDLERS: dict[str, Handler] = {
    "skipped": LogAndContinueHandler(),
    "dead_lettered": DeadLetterHandler(),
    "failed": FailHandler(),
}
FLAKY: Counter[int] = Counter()
"""How often an order was met; an outage that passes is over at the second try."""


class Order(msgspec.Struct):
    """A record, and what is to happen to it."""

    id: int
    do: str = "ok"


def _price(order: Order) -> Order:
    FLAKY[order.id] += 1
    if order.do == "bad":
        raise ValueError("told so")
    if order.do == "flaky" and FLAKY[order.id] == 1:
        raise ConnectionError("the service is away")
    return order


def _worth_it(order: Order) -> bool:
    return order.do != "small"


STAGES = (
    sg.deserialize(sg.Json(Order), name="decode"),
    sg.map(_price, name="price"),
    sg.filter(_worth_it, name="worth_it"),
)
KINDS = st.sampled_from(["ok"] * 6 + ["bad", "flaky", "small", "{", "null"])
PARTITIONS = st.lists(st.lists(KINDS, max_size=9), min_size=1, max_size=2)
ENDS = st.sampled_from(["skipped", "dead_lettered", "dead_lettered", "failed"])
FAULTS = st.lists(
    st.builds(
        Fault,
        batch=st.integers(0, 3),
        kind=st.sampled_from([*TASK_FAULTS, *BATCH_FAULTS, *DRIVER_FAULTS]),
        partition=st.integers(0, 1),
    ),
    max_size=6,
)


def values(partitions: list[list[str]]) -> list[list[bytes | None]]:
    """The bytes of every record; ids say where it lies."""
    made: list[list[bytes | None]] = []
    for number, kinds in enumerate(partitions):
        part: list[bytes | None] = []
        for offset, kind in enumerate(kinds):
            value = msgspec.json.encode(Order(number * 1000 + offset, kind))
            part.append({"{": value[:-1], "null": None}.get(kind, value))
        made.append(part)
    return made


def fact(kind: str, decode: str, price: str) -> str:
    """What should become of one record."""
    match kind:
        case "{" | "null":
            return decode
        case "bad":
            return price
        case "small":
            return "filtered"
        case _:
            return "out"


@given(partitions=PARTITIONS, step=st.integers(2, 4), decode=ENDS, price=ENDS, faults=FAULTS)
@example([["ok", "bad", "ok"]], 3, "skipped", "dead_lettered", [Fault(0, "twice")])
@example([["ok", "ok", "flaky"]], 3, "skipped", "dead_lettered", [Fault(0, "dies")])
@example([["bad"], ["ok"]], 3, "skipped", "dead_lettered", [Fault(0, "outage_written")])
@example([["ok"] * 6], 2, "skipped", "skipped", [Fault(n, k) for n, k in enumerate(DRIVER_FAULTS)])
@settings(max_examples=200, deadline=None)
def test_nothing_is_lost_or_counted_twice(
    partitions: list[list[str]], step: int, decode: str, price: str, faults: list[Fault]
) -> None:
    """P1–P4, P10, P14: out, letters by id and bytes, and the ledger, under every fault.

    Tasks that die before and behind their letters, are ended early or run twice; frames that
    are evaluated twice; outages of the target; a driver that dies at any step of a batch.
    """
    FLAKY.clear()
    given_ = values(partitions)
    # The first policy that stops the query ends the story; what came before it must be whole.
    sink = ListSink()
    flow = plan(
        *STAGES,
        policies={"decode": policy(HANDLERS[decode]), "price": policy(HANDLERS[price])},
        sinks={"default": sink},
    )
    store = replace(DEFAULTS, retry=Retry(initial=0.0))
    with TemporaryDirectory() as folder:
        world = World(Path(folder), Log(given_, step), flow, store, list(faults))
        failed = world.run()
        total = world.total
    done = [
        (number * 1000 + offset, value, fact(kinds[offset], decode, price))
        for number, kinds in enumerate(partitions)
        for offset, value in enumerate(given_[number])
        if offset < world.committed * step
    ]

    assert "failed" not in {end for _, _, end in done}, "a batch that failed is not committed"
    if failed is None:
        assert len(done) == sum(map(len, partitions))
    else:
        assert failed.action == "fail"
    rows = [row["id"] for batch in range(world.committed) for row in world.written.get(batch, [])]
    assert sorted(rows) == sorted(one for one, _, end in done if end == "out")
    letters = {letter.id: letter.record for letter in sink.stored}
    kept = [record for record in letters.values() if (record.offset or 0) < world.committed * step]
    assert sorted((r.partition or 0) * 1000 + (r.offset or 0) for r in kept) == sorted(
        one for one, _, end in done if end == "dead_lettered"
    )
    assert all(r.value == given_[r.partition or 0][r.offset or 0] for r in kept)
    ends = Counter(end for _, _, end in done)
    counted = {
        "out": total.records_out,
        **{name: total.total(name) for name in ("filtered", "skipped", "dead_lettered")},
    }
    assert counted == {name: ends[name] for name in counted}
    assert total.records_in == len(done)
    assert total.balanced
