"""The ledger under everything Spark may do again."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from sparkguard.core.ledger import Entry, Span, add, merge

Draw = Callable[..., Any]


@dataclass(frozen=True)
class Task:
    """A task of one evaluation: the records it saw, each a (topic, partition, offset)."""

    seen: tuple[tuple[str, int, int], ...]
    number: int

    def entry(self, *, ranges: bool, **facts: Any) -> Entry:
        """What the task writes: one record in ten is dead-lettered, one in seven filtered."""
        dead = sum(offset % 10 == 0 for _, _, offset in self.seen)
        filtered = sum(offset % 10 != 0 and offset % 7 == 0 for _, _, offset in self.seen)
        price = {"entered": len(self.seen), "dead_lettered": dead, "filtered": filtered}
        return Entry(
            flow="orders",
            query_id="q",
            batch_id=1,
            partition=self.number,
            spans=tuple(_spans(self.seen)) if ranges else (),
            records_in=len(self.seen),
            records_out=len(self.seen) - dead - filtered,
            stages={"price": price},
            **facts,
        )


def _spans(seen: Iterable[tuple[str, int, int]]) -> Iterable[Span]:
    ends: dict[tuple[str, int], tuple[int, int]] = {}
    for topic, partition, offset in sorted(seen):
        first, _ = ends.get((topic, partition), (offset, offset))
        ends[topic, partition] = (first, offset)
    for (topic, partition), (first, last) in ends.items():
        yield Span(topic=topic, partition=partition, first=first, last=last)


def cut(draw: Draw, records: list[tuple[str, int, int]], *, shuffled: bool) -> list[Task]:
    """The records as tasks: consecutive ranges of a partition, or dealt out by a shuffle."""
    if shuffled:
        count = draw(st.integers(1, 5))
        owner = random.Random(draw(st.integers(0, 99)))
        hands: list[list[tuple[str, int, int]]] = [[] for _ in range(count)]
        for record in records:
            owner.choice(hands).append(record)
    else:
        hands = []
        for place in sorted({record[:2] for record in records}):
            left = [record for record in records if record[:2] == place]
            while left:
                size = draw(st.integers(1, len(left)))
                hands.append(left[:size])
                left = left[size:]
    return [Task(tuple(hand), number) for number, hand in enumerate(hands) if hand]


@st.composite
def partitions(draw: st.DrawFn, topic: str = "orders") -> list[tuple[str, int, int]]:
    """The records of a batch."""
    sizes = draw(st.lists(st.integers(0, 40), min_size=1, max_size=4))
    starts = [draw(st.integers(0, 1000)) for _ in sizes]
    return [
        (topic, partition, start + n)
        for partition, (start, size) in enumerate(zip(starts, sizes, strict=True))
        for n in range(size)
    ]


def evaluation(draw: Draw, tasks: list[Task], **facts: Any) -> list[Entry]:
    """The entries of tasks of which some ran twice, in the order they finished."""
    entries = [task.entry(**facts) for task in tasks]
    twice = [one for one in entries if draw(st.booleans())]
    shuffled: list[Entry] = draw(st.permutations(entries + twice))
    return shuffled


@given(st.data())
def test_every_record_once(data: st.DataObject) -> None:
    """P4: retries, speculation, replays, double and broken evaluations: each record once."""
    draw = data.draw
    records = draw(partitions())
    shuffled = draw(st.booleans())
    runs = draw(st.integers(1, 3))
    written: list[list[Entry]] = []
    whole = draw(st.integers(0, runs - 1))
    for run in range(runs):
        for stage in range(draw(st.integers(1, 2))):
            tasks = cut(draw, records, shuffled=shuffled)
            facts = {"run_id": f"r{run}", "use": f"u{run}", "stage_id": stage, "ranges": True}
            if run == whole and stage == 0:
                written.append(evaluation(draw, tasks, **facts))
            else:
                some = [task for task in tasks if draw(st.booleans())]
                written.append(evaluation(draw, some, **facts))
    entries = [entry for part in draw(st.permutations(written)) for entry in part]
    _check(entries, records)


@given(st.data())
def test_every_record_once_without_ranges(data: st.DataObject) -> None:
    """P4: likewise for a source without offsets, also when a restart names its uses anew."""
    draw = data.draw
    records = draw(partitions())
    runs = draw(st.integers(1, 3))
    whole = draw(st.integers(0, runs - 1))
    entries: list[Entry] = []
    for run in range(runs):
        for stage in range(draw(st.integers(1, 2))):
            tasks = cut(draw, records, shuffled=draw(st.booleans()))
            facts = {"run_id": f"r{run}", "use": f"u{run}", "stage_id": stage, "ranges": False}
            if not (run == whole and stage == 0):
                tasks = [task for task in tasks if draw(st.booleans())]
            entries += evaluation(draw, tasks, **facts)
    _check(entries, records)


@given(st.data())
def test_disjoint_halves_add_up(data: st.DataObject) -> None:
    """P4: two uses of the flow over two topics, each evaluated again, are both topics once."""
    draw = data.draw
    halves = [draw(partitions("orders")), draw(partitions("payments"))]
    written = []
    for number, records in enumerate(halves):
        for stage in range(draw(st.integers(1, 2))):
            tasks = cut(draw, records, shuffled=draw(st.booleans()))
            facts = {"run_id": "r", "use": f"u{number}", "stage_id": 10 * number + stage}
            written.append(evaluation(draw, tasks, ranges=True, **facts))
    entries = [entry for part in draw(st.permutations(written)) for entry in part]
    _check(entries, halves[0] + halves[1])


@given(st.data())
def test_union_of_one_source_is_counted_once(data: st.DataObject) -> None:
    """P4: the same flow used twice over the same ranges: each record is accounted for once."""
    draw = data.draw
    records = draw(partitions())
    entries: list[Entry] = []
    # Spark cuts one source in one way, however often it reads it.
    tasks = cut(draw, records, shuffled=False)
    for use in ("a", "b"):
        moved = [replace(task, number=task.number + 100 * (use == "b")) for task in tasks]
        facts = {"run_id": "r", "use": use, "stage_id": 1, "ranges": True}
        entries += evaluation(draw, moved, **facts)
    _check(entries, records)


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=10))
def test_batches_add_up(sizes: list[int]) -> None:
    """The sum over batches is the sum of the batches."""
    entries = [
        Entry(flow="orders", batch_id=number, records_in=size, records_out=size)
        for number, size in enumerate(sizes)
    ]
    (total,) = add(merge(entries * 2))
    assert total.records_in == total.records_out == sum(sizes)
    assert total.balanced


def _check(entries: list[Entry], records: list[tuple[str, int, int]]) -> None:
    if not records:
        return
    (account,) = merge(entries)
    assert account.records_in == len(records)
    assert account.balanced
    assert account.total("dead_lettered") == sum(offset % 10 == 0 for _, _, offset in records)
    # Merging what is merged already, as a reader of both does, changes nothing.
    assert merge(entries + entries) == [account]
