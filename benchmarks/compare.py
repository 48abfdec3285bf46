"""Ratios: two or more jobs in turns, each round compared with itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import median

from benchmarks.meter import Cost

Costs = dict[str, list[Cost]]


@dataclass(frozen=True, slots=True)
class Claim:
    """What a row compares.

    Attributes:
        goal: the ratio is to be at most this; None where there is no goal.
    """

    name: str
    says: str
    goal: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table.

    Attributes:
        ratios: one a round, of CPU seconds unless the claim says otherwise.
        wall, workers: the same of wall time and of the workers' CPU alone, beside it.
        facts: absolute numbers worth a look.
    """

    claim: Claim
    ratios: list[float]
    wall: list[float] = field(default_factory=list)
    workers: list[float] = field(default_factory=list)
    facts: dict[str, float] = field(default_factory=dict)

    @property
    def ratio(self) -> float:
        """The median."""
        return median(self.ratios)

    @property
    def met(self) -> bool | None:
        """Whether the median meets the goal."""
        return None if self.claim.goal is None else self.ratio <= self.claim.goal


def in_turns(
    jobs: Mapping[str, Callable[[], object]],
    measure: Callable[[Callable[[], object]], Cost],
    *,
    rounds: int,
    warm_ups: int,
    tell: Callable[[str], None] = lambda _: None,
) -> Costs:
    """Run every job once a round, in turned order from one round to the next."""
    names = list(jobs)
    costs: Costs = {name: [] for name in names}
    for number in range(-warm_ups, rounds):
        for name in names if number % 2 == 0 else reversed(names):
            tell(f"{name}: {'warm-up' if number < 0 else f'run {number + 1} of {rounds}'}")
            cost = measure(jobs[name])
            if number >= 0:
                costs[name].append(cost)
    return costs


def row(costs: Costs, pair: tuple[str, str], claim: Claim, records: int) -> Row:
    """The first job's cost over the second's, round by round."""
    ours, theirs = costs[pair[0]], costs[pair[1]]
    facts: dict[str, float] = {}
    for side in pair:
        cpu, wall = median(c.cpu for c in costs[side]), median(c.wall for c in costs[side])
        workers = median(c.workers for c in costs[side])
        facts |= {f"{side} µs CPU a record": cpu / records * 1e6}
        facts |= {f"{side} µs in workers": workers / records * 1e6}
        facts |= {f"{side} records/s": records / wall}
    return Row(
        claim=claim,
        ratios=[a.cpu / b.cpu for a, b in zip(ours, theirs, strict=True)],
        wall=[a.wall / b.wall for a, b in zip(ours, theirs, strict=True)],
        workers=[a.workers / b.workers for a, b in zip(ours, theirs, strict=True) if b.workers],
        facts=facts,
    )
