"""Merging entries: each record is counted once, whatever Spark did again."""

from sparkguard.core.ledger import FACTS, Account, Entry, Span, Top, add, merge
from tests.unit.core.made import entry


def span(first: int, last: int, partition: int = 0, topic: str = "orders") -> Span:
    """A range of the topic."""
    return Span(topic=topic, partition=partition, first=first, last=last)


def counted(*entries: Entry) -> int:
    """How many records the one account of the entries has."""
    (account,) = merge(entries)
    assert account.balanced
    assert account.total("entered") == account.records_in
    return account.records_in


def test_task_retry_overwrites() -> None:
    """P4: a task that ran twice is counted once, with what it counted last."""
    first = entry(10, span(0, 9), records_out=9, stages={"price": {"skipped": 1}})
    again = entry(10, span(0, 9))
    (account,) = merge([first, again])
    assert (account.records_in, account.records_out) == (10, 10)
    assert account.total("skipped") == 0


def test_speculation_and_tasks_of_other_ranges() -> None:
    """P4: two copies of one task are one; two tasks are two."""
    copies = [entry(10, span(0, 9), partition=0)] * 2
    assert counted(*copies, entry(5, span(10, 14), partition=1)) == 15


def test_double_evaluation() -> None:
    """P4: count(), then write: two Spark stages over the same ranges, counted once."""
    both = [
        entry(10, span(at, at + 9), stage_id=stage, partition=at)
        for stage in (3, 8)
        for at in (0, 10, 20)
    ]
    assert counted(*both) == 30


def test_replay_with_other_splits() -> None:
    """P4: a restarted batch may be cut differently; ranges that overlap are not added."""
    before = [entry(20, span(0, 19)), entry(20, span(20, 39), partition=1)]
    after = [
        entry(10, span(at, at + 9), run_id="r2", use="u2", partition=at) for at in (0, 10, 20, 30)
    ]
    assert counted(*before, *after) == 40
    assert counted(*after, *before) == 40


def test_fullest_evaluation_counts() -> None:
    """P4: of an evaluation that died half-way and a whole one, the whole one counts."""
    died = [entry(10, span(0, 9), records_out=9, stages={"price": {"entered": 10, "skipped": 1}})]
    whole = [entry(10, span(at, at + 9), stage_id=5, partition=at) for at in (0, 10)]
    assert counted(*died, *whole) == 20
    assert counted(*whole, *died) == 20
    (account,) = merge([*whole, *died])
    assert account.total("skipped") == 0


def test_later_of_equals() -> None:
    """P4: a function that is not deterministic: the evaluation that came last is the truth."""
    first = entry(10, span(0, 9), stage_id=1, records_out=8)
    later = entry(10, span(0, 9), stage_id=2, records_out=9)
    (account,) = merge([first, later])
    assert account.records_out == 9
    bare = [entry(10, stage_id=stage, records_out=out) for stage, out in ((1, 8), (2, 9))]
    assert merge(bare)[0].records_out == 9


def test_halves_of_a_join() -> None:
    """P4: the same flow over two topics, or two halves of one, adds up."""
    left = entry(10, span(0, 9), use="a", stage_id=1)
    right = entry(7, span(0, 6, topic="payments"), use="b", stage_id=2)
    assert counted(left, right) == 17
    assert counted(left, right, entry(10, span(0, 9), use="b", stage_id=3)) == 17


def test_interleaved_ranges_of_one_evaluation() -> None:
    """P4: behind a shuffle the tasks' ranges interleave; that is no repetition."""
    tasks = [entry(5, span(n, 90 + n), partition=n) for n in range(10)]
    again = [entry(5, span(n, 90 + n), partition=n, stage_id=9) for n in range(10)]
    assert counted(*tasks) == 50
    assert counted(*tasks, *again) == 50


def test_one_task_over_several_partitions() -> None:
    """P4: coalesced partitions are one Spark task and several ranges."""
    assert counted(*[entry(5, span(0, 4, partition=n), partition=0) for n in range(4)]) == 20


def test_without_ranges() -> None:
    """P4: a source without offsets is keyed by Spark stage and partition."""
    tasks = [entry(5, partition=n) for n in range(4)]
    assert counted(*tasks, *tasks) == 20
    assert counted(*tasks, *[entry(5, partition=n, stage_id=9) for n in range(4)]) == 20
    assert counted(*tasks, *[entry(5, partition=n, stage_id=9) for n in range(2)]) == 20


def test_without_ranges_two_uses_add() -> None:
    """P4: a union of the flow over two folders is both of them."""
    assert counted(entry(5, use="a"), entry(7, use="b", stage_id=2)) == 12


def test_without_ranges_a_restart_overwrites() -> None:
    """P4: a restart builds the flow anew, under another token; its replay is not added."""
    first = [entry(5, use="a"), entry(7, use="b", stage_id=2)]
    again = [entry(5, use="c", run_id="r2"), entry(7, use="d", run_id="r2", stage_id=2)]
    assert counted(*first, *again) == 12
    assert counted(*first[:1], *again) == 12
    assert counted(*first, *again[:1]) == 12
    replayed = entry(5, use="c", run_id="r2", records_out=4)
    assert merge([entry(5, use="a"), replayed])[0].records_out == 4


def test_batches_and_flows_are_apart() -> None:
    """P4: the same partition in another batch, query or flow is another account."""
    accounts = merge(
        [entry(1), entry(2, batch_id=2), entry(3, query_id="p"), entry(4, flow="other")]
    )
    assert sorted(account.records_in for account in accounts) == [1, 2, 3, 4]
    assert {account.flow: account.records_in for account in add(accounts)} == {
        "orders": 6,
        "other": 4,
    }
    assert merge([]) == add([]) == []


def test_balance() -> None:
    """In = out + filtered + skipped + dead-lettered, over all stages; not where counts are lost."""
    stages = {"decode": {"dead_lettered": 1}, "price": {"skipped": 2, "filtered": 3}}
    (account,) = merge([entry(10, records_out=4, stages=stages)])
    assert account.balanced
    assert not merge([entry(10, records_out=5, stages=stages)])[0].balanced
    assert not Account(flow="orders", records_in=0, counts_lost=True).balanced
    lost = Account(flow="orders", records_in=3, counts_lost=True)
    assert add([account, lost])[0].counts_lost
    assert not add([account, lost])[0].balanced


def test_every_fact_is_there() -> None:
    """A stage's counts have every fact, 0 where nothing happened."""
    (account,) = merge([entry(1)])
    assert set(account.stages["price"]) == set(FACTS)


def test_who_reads_the_source() -> None:
    """An account tells whether its flow saw coordinates, and so do sums of such."""
    read, behind = merge([entry(1, span(0, 0))]), merge([entry(1)])
    assert [one.source for one in (*read, *behind, *add([*read, *read]))] == [True, False, True]


def top(fingerprint: str, count: int) -> Top:
    """One group of failures."""
    return Top(
        stage="price",
        fingerprint=fingerprint,
        cause="poison",
        exception_type="ValueError",
        message=fingerprint,
        coordinates="",
        count=count,
    )


def test_top_failures() -> None:
    """P20: groups add up over tasks, the largest first, at most 20."""
    tasks = [
        entry(1, partition=n, top=(top("a", 1), *(top(f"{n}-{i}", 2) for i in range(15))))
        for n in range(10)
    ]
    (account,) = merge(tasks)
    assert len(account.top) == 20
    assert (account.top[0].fingerprint, account.top[0].count) == ("a", 10)


def test_overlap() -> None:
    """Ranges touch when they share an offset of one partition."""
    assert span(0, 9).overlaps(span(9, 12))
    assert span(3, 4).overlaps(span(0, 9))
    assert not span(0, 9).overlaps(span(10, 12))
    assert not span(0, 9).overlaps(span(0, 9, partition=1))
    assert not span(0, 9).overlaps(span(0, 9, topic="other"))


def test_two_filters_of_one_topic() -> None:
    """P4: two uses that read interleaved halves of a range are both counted."""
    even, odd = entry(50, span(0, 98), use="even"), entry(50, span(1, 99), use="odd", stage_id=0)
    assert counted(even, odd) == 100


def test_parts_that_another_stage_left_out() -> None:
    """P4: take(1) of a persisted frame evaluates one part, the write the others."""
    first = [entry(10, part="p0", stage_id=3, attempt=1)]
    rest = [entry(10, part=f"p{n}", partition=n, stage_id=4, attempt=n) for n in range(1, 8)]
    assert counted(*first, *rest) == 80
    assert counted(*first, *first, *rest) == 80


def test_parts_of_a_coalesced_task() -> None:
    """P4: one task that evaluates eight parts, then eight tasks that evaluate one each."""
    together = [entry(10, part=f"p{n}", stage_id=3, attempt=1) for n in range(8)]
    apart = [entry(10, part=f"p{n}", partition=n, stage_id=4, attempt=n) for n in range(8)]
    assert counted(*together, *apart) == counted(*apart, *together) == 80


def test_another_try_of_a_batch_function() -> None:
    """P4: a flow that is applied in a batch function has a new use with each try."""
    tries = [entry(6, run_id=f"r/{n}", use=f"u{n}", part="p") for n in (1, 2)]
    assert counted(*tries) == 6


def test_attempts_side_by_side() -> None:
    """P4: two attempts of a coalesced task leave their passes in turns: one of them counts."""
    passes = [entry(10, part=part, attempt=n) for part in "xy" for n in (1, 2)]
    assert counted(*passes) == 20
    assert counted(*passes, entry(10, part="z", attempt=1)) == 30
