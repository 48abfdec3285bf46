"""Books: what the ledger says of the queries that are audited, as sums over their batches."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from sparkguard.audit.chain import Chain, chain, heads_of
from sparkguard.audit.sources import Source
from sparkguard.core.ledger import Account
from sparkguard.driver.ledger import Ledger
from sparkguard.errors import LettersError, UnknownNameError


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """The accounts of one query, or of all batch frames, which have no id.

    Attributes:
        flows: one account a flow, of those that are asked for.
        every: of all of its flows: which of them reads the source is the query's own affair.
        own: those of batch functions that have met failures.
        newest: the last batch that counts, and the last one for letters of batch functions.
        late: records of committed batches that have no account.
        offsets: how many the checkpoint has; None where nobody knows.
        batches: by number, the accounts of the newest ones; none with lost counts among them.
    """

    id: str | None
    flows: tuple[Account, ...]
    every: tuple[Account, ...]
    own: tuple[Account, ...] = ()
    newest: tuple[int, int] = (0, 0)
    late: int = 0
    offsets: int | None = None
    batches: Mapping[int, Sequence[Account]] = field(default_factory=dict)

    @property
    def names(self) -> set[str]:
        """Of its flows and batch functions."""
        return {account.flow for account in (*self.flows, *self.own)}

    @property
    def chain(self) -> Chain | None:
        """How the flows stand that are asked for; None where nobody knows."""
        return chain(self.flows, self.offsets, self.late)

    @property
    def records_in(self) -> int | None:
        """What has been counted of the source; None where flows of it say different numbers."""
        found = chain(self.every, self.offsets, self.late)
        if found is not None:
            return sum(flow.records_in for flow in found.heads)
        reads = {flow.records_in for flow in heads_of(self.every)}
        return reads.pop() if len(reads) == 1 else None

    @property
    def heads(self) -> set[str]:
        """Names of the flows that read the source."""
        found = chain(self.every, self.offsets, self.late)
        return {flow.flow for flow in (heads_of(self.every) if found is None else found.heads)}

    @property
    def lost(self) -> int:
        """Records that went in, and nobody knows what became of them: their counts are lost."""
        found = self.chain or Chain(heads=self.flows)
        return self.late + max(_uncounted(found.heads), _uncounted(found.behind))

    @property
    def rows(self) -> int | None:
        """How many rows should have come out behind all of them; None where nobody knows."""
        found = self.chain
        return None if found is None else found.rows - sum(account.left for account in self.own)

    def read_in(self, number: int) -> int:
        """How many records of a batch were counted where they were read."""
        return sum(one.records_in for one in self.batches[number] if one.flow in self.heads)

    def placeless(self, number: int) -> int:
        """How many records of a batch were filtered, skipped or put off, and lie nowhere."""
        return sum(map(_placeless, self.batches[number]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Books:
    """All queries that are audited."""

    app: str
    queries: tuple[Query, ...]
    chosen: bool = False
    sources: Mapping[str, Source] = field(default_factory=dict)

    @property
    def accounts(self) -> list[Account]:
        """Every account, those of batch functions too."""
        return [one for query in self.queries for one in (*query.flows, *query.own)]

    @property
    def placeless(self) -> int:
        """Records that left and lie nowhere: they were filtered, skipped or put off."""
        return sum(map(_placeless, self.accounts))

    @property
    def fanned(self) -> bool:
        """Whether a record may have made several rows, or none."""
        flows = (flow for query in self.queries for flow in (*query.every, *query.own))
        return any(flow.rows_out != flow.records_out for flow in flows)

    @property
    def lost(self) -> int:
        """As in `Query`, of all queries."""
        return sum(query.lost for query in self.queries)

    def lost_of(self, flow: str | None = None) -> int:
        """Records of a flow, or of any, whose counts are lost."""
        late = sum(query.late for query in self.queries if flow is None or flow in query.names)
        return late + _uncounted(one for one in self.accounts if flow in (None, one.flow))

    def again(self, flow: str) -> bool:
        """Whether a flow may have read the same records twice."""
        ids = [query.id for query in self.queries if flow in query.names]
        return len(ids) > 1 or None in ids

    @property
    def offsets(self) -> int:
        """How many the checkpoints have."""
        return sum(query.offsets or 0 for query in self.queries)

    @property
    def whole(self) -> bool:
        """Whether those flows are asked for that read the sources."""
        return all(query.heads <= query.names for query in self.queries)

    @property
    def branched(self) -> str:
        """Names of flows of which nobody knows how they stand to each other; empty for none."""
        queries = (query for query in self.queries if query.chain is None)
        return ", ".join(sorted({flow.flow for query in queries for flow in query.flows}))


def books(
    app: str, ledger: Ledger, sources: Mapping[str, Source], flows: Sequence[str] = ()
) -> Books:
    """The books of an app: of all its queries, or of those whose checkpoints are given.

    Args:
        flows: only these.

    Raises:
        LettersError: the ledger has no account of the app, or none of a checkpoint's query.
        UnknownNameError: the ledger knows no such flow.
    """
    until = {query: source.committed for query, source in sources.items()}
    accounts = [one for one in ledger.sums(until) if not sources or (one.query_id or "") in sources]
    if missing := [one for query, one in sources.items() if query not in _queries(accounts)]:
        raise LettersError(f"The ledger has no account of the query of {missing[0].path}.")
    if not accounts:
        raise LettersError(f"The ledger has no account of the app {app!r} yet.")
    known = {account.flow for account in accounts if not account.own}
    for name in flows:
        if name not in known:
            raise UnknownNameError("flow", name, known)
    batches: dict[str | None, list[Account]] = defaultdict(list)
    for batch in ledger.batches():
        batches[batch.query_id].append(batch)
    return Books(
        app=app,
        queries=tuple(
            query
            for one in sorted(_queries(accounts), key=str)
            if (
                query := _query(one, accounts, batches[one], sources.get(one or ""), asked=flows)
            ).flows
        ),
        chosen=bool(sources or flows),
        sources=sources,
    )


def _placeless(account: Account) -> int:
    return account.left - account.total("dead_lettered")


def _uncounted(flows: Iterable[Account]) -> int:
    return sum(max(0, flow.uncounted) for flow in flows if flow.counts_lost)


def _queries(accounts: Iterable[Account]) -> set[str | None]:
    return {account.query_id for account in accounts}


def _query(
    query_id: str | None,
    sums: list[Account],
    batches: list[Account],
    source: Source | None,
    *,
    asked: Sequence[str],
) -> Query:
    mine = [account for account in sums if account.query_id == query_id]
    every = tuple(account for account in mine if not account.own)
    own = tuple(account for account in mine if account.own)
    flows = tuple(account for account in every if not asked or account.flow in asked)
    numbers = {account.batch_id or 0 for account in batches if not account.own}
    newest = newest_own = max(numbers, default=0)
    if source is not None:
        newest = newest_own = source.committed
    elif newest not in {account.batch_id for account in batches if account.own}:
        # What a batch function has set aside so far may be of a batch that is under way.
        newest_own -= 1
    names = {account.flow for account in (*flows, *own)}
    return Query(
        id=query_id,
        flows=flows,
        every=every,
        own=own,
        newest=(newest, newest_own),
        late=0 if source is None else source.late(numbers),
        offsets=None if source is None or source.ranges is None else source.offsets,
        batches=_counted([one for one in batches if one.flow in names], newest, newest_own),
    )


def _counted(batches: Iterable[Account], newest: int, newest_own: int) -> dict[int, list[Account]]:
    """By number, the batches that count and whose counts are not lost."""
    found: dict[int, list[Account]] = defaultdict(list)
    for account in batches:
        number = -1 if account.batch_id is None else account.batch_id
        if 0 <= number <= (newest_own if account.own else newest):
            found[number].append(account)
    return {
        number: accounts
        for number, accounts in found.items()
        if not any(account.counts_lost for account in accounts)
    }
