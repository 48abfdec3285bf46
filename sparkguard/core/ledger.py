"""The ledger: the account of every record that went in.

A worker's task writes one entry; merging entries overwrites and never adds, so
a retried, speculated or repeated evaluation counts each record once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final

Counts = dict[str, int]

FACTS = (
    "entered",
    "filtered",
    "skipped",
    "dead_lettered",
    "delayed",
    "elements",
    "extra_letters",
    "failed_attempts",
    "retries",
    "repeated",
)
"""What is counted for each stage: records, but for ``elements`` of partial stages, and tries.

``extra_letters`` are the letters of such elements, without one for each record that is counted as
dead-lettered because none of its elements is left: so many more letters there are than records.
``repeated`` says how many of those skipped or dead-lettered were duplicates or stale: they are
no sign that something is wrong, and use up no budget."""

WAYS_OUT: Final = ("filtered", "skipped", "dead_lettered", "delayed")
"""Of `FACTS` those by which a record leaves a flow before its end; each leaves by one."""

FAILED: Final = ("skipped", "dead_lettered", "delayed")
"""Those of them that use up the budget of its stage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """The offsets of one partition that a task saw, both ends included."""

    topic: str
    partition: int
    first: int
    last: int

    def overlaps(self, other: Span) -> bool:
        """Whether both lie in one partition and share an offset range."""
        return (
            (self.topic, self.partition) == (other.topic, other.partition)
            and self.first <= other.last
            and other.first <= self.last
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Top:
    """One fingerprint among a task's failures: how often, and one example."""

    stage: str
    fingerprint: str
    cause: str
    exception_type: str
    message: str
    coordinates: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What one finished task evaluated.

    Attributes:
        use: token of the ``df.transform(flow)`` that evaluated it.
        run_id: the query's run; a restart has another.
        stage_id, partition: the Spark stage and its partition.
        attempt: of the task, unique in its application.
        part: print of the rows of one pass, for sources without offsets. A task has
            several passes where it evaluates several partitions of the flow (``coalesce``).
        spans: source ranges covered, empty for sources without offsets.
        stages: counts by stage name, facts as in `FACTS`.
        failed: of a task that its flow has failed, why; such an entry counts nothing.
        carrier: name of the file that brought it; empty where an accumulator did.
    """

    flow: str
    use: str = ""
    query_id: str | None = None
    run_id: str | None = None
    batch_id: int | None = None
    stage_id: int = 0
    partition: int = 0
    attempt: int = 0
    part: str = ""
    spans: tuple[Span, ...] = ()
    records_in: int = 0
    records_out: int = 0
    rows_out: int = 0
    stages: dict[str, Counts] = field(default_factory=dict)
    top: tuple[Top, ...] = ()
    failed: str = ""
    carrier: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """The merged account of one flow in one batch.

    Attributes:
        counts_lost: the batch was committed, but its driver died before the
            account was stored: only `records_in` is known, from the offset log.
        source: the flow has read coordinates of Kafka, so it reads the source itself.
        own: the account of a batch function that met a failure; a batch without one is fine.
    """

    flow: str
    query_id: str | None = None
    batch_id: int | None = None
    records_in: int = 0
    records_out: int = 0
    rows_out: int = 0
    stages: dict[str, Counts] = field(default_factory=dict)
    top: tuple[Top, ...] = ()
    counts_lost: bool = False
    source: bool = False
    own: bool = False

    def total(self, *facts: str) -> int:
        """The sum of one fact, or several, over the stages."""
        return sum(counts.get(fact, 0) for counts in self.stages.values() for fact in facts)

    @property
    def left(self) -> int:
        """How many records left before the end, on all of the `WAYS_OUT`."""
        return self.total(*WAYS_OUT)

    @property
    def uncounted(self) -> int:
        """How many went in and neither came out nor left; where counts are lost, those."""
        return self.records_in - self.records_out - self.left

    @property
    def balanced(self) -> bool:
        """Whether in = out + filtered + skipped + dead-lettered + delayed."""
        return not self.counts_lost and not self.uncounted


def merge(entries: Iterable[Entry]) -> list[Account]:
    """The accounts, one a flow and batch, each record counted once.

    Of several runs (a restart, another try of a batch function) the fullest counts, the
    later of equals. Within a run and a use of the flow the fullest Spark stage counts, and
    another one adds only what lies outside the ranges already counted; without ranges, the
    parts that no other stage has. Other uses of the flow add theirs (a join of two halves),
    but for those that cover the very same ranges.
    """
    batches: dict[tuple[str, str | None, int | None], list[Entry]] = defaultdict(list)
    for entry in entries:
        batches[entry.flow, entry.query_id, entry.batch_id].append(entry)
    return [_sum(key, counted_once(group)) for key, group in batches.items()]


def add(accounts: Iterable[Account]) -> list[Account]:
    """The sums over batches, one account a flow."""
    flows: dict[str, list[Account]] = defaultdict(list)
    for account in accounts:
        flows[account.flow].append(account)
    return [_sum((flow, None, None), group) for flow, group in flows.items()]


def counted_once(entries: list[Entry]) -> list[Entry]:
    """Those entries of one flow and batch that count, as `merge` says."""
    # A thread of a batch function does not know its run: it is the one that goes on.
    latest = next((entry.run_id for entry in reversed(entries) if entry.run_id), None)
    runs: dict[str | None, list[Entry]] = defaultdict(list)
    for entry in entries:
        runs[entry.run_id or latest].append(entry)
    counted = [_by_use(run) for run in runs.values()]
    return max(reversed(counted), key=_records, default=[])


def _by_use(run: list[Entry]) -> list[Entry]:
    uses: dict[str, dict[int, list[Entry]]] = {}
    for entry in run:
        uses.setdefault(entry.use, {}).setdefault(entry.stage_id, []).append(entry)
    # Sorting is stable: of equally full uses the later one comes first.
    newest_first = [_by_range(stages) for stages in reversed(uses.values())]
    taken: set[tuple[Span, ...]] = set()
    kept: list[Entry] = []
    for group in sorted(newest_first, key=_records, reverse=True):
        fresh = [entry for entry in group if entry.spans not in taken]
        taken.update(entry.spans for entry in fresh)
        kept.extend(fresh)
    return kept + [entry for stages in uses.values() for entry in _by_part(stages)]


def _by_range(stages: dict[int, list[Entry]]) -> list[Entry]:
    """What one use evaluated, of sources with offsets."""
    groups = [
        list({entry.spans: entry for entry in group if entry.spans}.values())
        for group in reversed(stages.values())
    ]
    taken: list[Span] = []
    kept: list[Entry] = []
    for group in sorted(groups, key=_records, reverse=True):
        fresh = [entry for entry in group if not _touches(entry, taken)]
        taken.extend(span for entry in fresh for span in entry.spans)
        kept.extend(fresh)
    return kept


def _by_part(stages: dict[int, list[Entry]]) -> list[Entry]:
    """What one use evaluated, of sources without offsets: each part as often as a stage has it."""
    found: dict[str, list[Entry]] = {}
    for group in reversed(stages.values()):
        # Attempts of a task may run side by side, and as files the passes of each of them come.
        tasks: dict[int, dict[int, dict[str, Entry]]] = defaultdict(lambda: defaultdict(dict))
        for entry in group:
            if not entry.spans:
                tasks[entry.partition][entry.attempt][entry.part] = entry
        parts: dict[str, list[Entry]] = defaultdict(list)
        for attempts in tasks.values():
            passes = (list(attempt.values()) for attempt in reversed(attempts.values()))
            for entry in max(passes, key=_records):
                parts[entry.part].append(entry)
        for part, same in parts.items():
            if _records(same) > _records(found.get(part, [])) or part not in found:
                found[part] = same
    return [entry for same in found.values() for entry in same]


def _records(group: list[Entry]) -> int:
    return sum(entry.records_in for entry in group)


def _touches(entry: Entry, taken: list[Span]) -> bool:
    return any(span.overlaps(other) for span in entry.spans for other in taken)


def _sum(key: tuple[str, str | None, int | None], parts: list[Entry] | list[Account]) -> Account:
    stages: dict[str, Counts] = {}
    top: dict[tuple[str, str], Top] = {}
    for part in parts:
        for name, counts in part.stages.items():
            into = stages.setdefault(name, dict.fromkeys(FACTS, 0))
            for fact, count in counts.items():
                into[fact] = into.get(fact, 0) + count
        for one in part.top:
            place = (one.stage, one.fingerprint)
            known = top.get(place)
            top[place] = replace(known, count=known.count + one.count) if known else one
    flow, query_id, batch_id = key
    return Account(
        flow=flow,
        query_id=query_id,
        batch_id=batch_id,
        records_in=sum(part.records_in for part in parts),
        records_out=sum(part.records_out for part in parts),
        rows_out=sum(part.rows_out for part in parts),
        stages=stages,
        top=tuple(sorted(top.values(), key=lambda one: -one.count)[:20]),
        counts_lost=any(getattr(part, "counts_lost", False) for part in parts),
        source=any(getattr(part, "source", False) or getattr(part, "spans", ()) for part in parts),
    )
