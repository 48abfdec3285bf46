"""Chain: how the flows of one query stand to each other, as far as their accounts tell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sparkguard.core.ledger import Account


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """Flows of which each reads what came out of the one before.

    Attributes:
        heads: those that read the source, each a part of it of its own.
        behind: the others, in order; what comes out of the last one is the output.
    """

    heads: tuple[Account, ...]
    behind: tuple[Account, ...] = ()

    @property
    def rows(self) -> int:
        """How many rows came out at the end, as far as they were counted."""
        return sum(flow.rows_out for flow in self.behind[-1:] or self.heads)


def chain(flows: Sequence[Account], offsets: int | None, late: int) -> Chain | None:
    """The chain of a query's flows; None where nobody knows, as with branches of one source.

    Args:
        offsets: how many the query has read, where that is known.
        late: records of batches without an account.
    """
    met = tuple(flow for flow in flows if flow.records_in) or tuple(flows[:1])
    heads = heads_of(met)
    if len(met) == 1:
        return Chain(heads=met)
    if len(heads) > 1:
        # Flows over the same records would have counted each of them more than once.
        beside = offsets is not None and offsets == sum(one.records_in for one in heads) + late
        if not beside or not all(one.source for one in heads):
            return None
    rest = [flow for flow in met if flow not in heads]
    if len(rest) == 1 and (late or any(flow.counts_lost for flow in met)):
        return Chain(heads=heads, behind=tuple(rest))
    behind: list[Account] = []
    while rest:
        rows = Chain(heads=heads, behind=tuple(behind)).rows
        after = [flow for flow in rest if flow.records_in == rows]
        # Two that read the same number may be branches.
        if len(after) != 1:
            return None
        behind += after
        rest.remove(after[0])
    return Chain(heads=heads, behind=tuple(behind))


def heads_of(flows: Sequence[Account]) -> tuple[Account, ...]:
    """The flows that read the source itself; where no account says so, those that read most."""
    most = max(flow.records_in for flow in flows)
    said = tuple(flow for flow in flows if flow.source)
    return said or tuple(flow for flow in flows if flow.records_in == most)
