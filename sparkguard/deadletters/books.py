"""Books: what the ledger says of the queries that are audited, as sums over their batches."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from sparkguard.core.ledger import Account
from sparkguard.deadletters.sources import Source
from sparkguard.driver.ledger import Ledger
from sparkguard.errors import LettersError, UnknownNameError


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """The accounts of one query, or of all batch frames, which have no id.

    The flow that has counted most comes first, and the others are behind it, unless they read
    the source side by side.

    Attributes:
        flows: one account a flow.
        own: those of batch functions that have met failures.
        newest: the last batch that counts, and the last one for letters of batch functions.
        late: records of committed batches that have no account.
        offsets: how many the checkpoint has; None where nobody knows.
        placeless: by batch, of the newest ones, how many were filtered or skipped.
    """

    id: str | None
    flows: tuple[Account, ...]
    own: tuple[Account, ...] = ()
    newest: tuple[int, int] = (0, 0)
    late: int = 0
    offsets: int | None = None
    placeless: Mapping[int, int] = field(default_factory=dict)

    @property
    def names(self) -> set[str]:
        """Of its flows and batch functions."""
        return {account.flow for account in (*self.flows, *self.own)}

    @property
    def records_in(self) -> int:
        """What the flows have counted of the source."""
        return sum(flow.records_in for flow in self._first)

    @property
    def lost(self) -> int:
        """Records that went in, and nobody knows what became of them: their counts are lost."""
        return self.late + sum(max(0, flow.uncounted) for flow in self._first if flow.counts_lost)

    @property
    def rows(self) -> int:
        """How many rows should have come out behind all of them."""
        behind = [flow for flow in self.flows if flow not in self._first]
        left = sum(account.left for account in (*behind, *self.own))
        return sum(flow.rows_out for flow in self._first) - left

    @property
    def _first(self) -> tuple[Account, ...]:
        most = max(self.flows, key=lambda flow: flow.records_in)
        together = sum(flow.records_in for flow in self.flows) + self.late
        beside = self.offsets == together and self.offsets != most.records_in + self.late
        return self.flows if beside else (most,)


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
        """Records that left and lie nowhere: they were filtered or skipped."""
        return sum(map(_placeless, self.accounts))

    @property
    def fanned(self) -> bool:
        """Whether a record may have made several rows, or none."""
        return any(flow.rows_out != flow.records_out for flow in self.accounts)

    @property
    def lost(self) -> int:
        """As in `Query`, of all queries."""
        return sum(query.lost for query in self.queries)

    @property
    def offsets(self) -> int:
        """How many the checkpoints have."""
        return sum(query.offsets or 0 for query in self.queries)


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
    kept = [one for one in accounts if one.own or one.flow in (flows or known)]
    return Books(
        app=app,
        queries=tuple(
            _query(one, kept, batches[one], sources.get(one or ""))
            for one in sorted(_queries(kept), key=str)
            if any(account.query_id == one and not account.own for account in kept)
        ),
        chosen=bool(sources or flows),
        sources=sources,
    )


def _placeless(account: Account) -> int:
    return account.left - account.total("dead_lettered")


def _queries(accounts: Iterable[Account]) -> set[str | None]:
    return {account.query_id for account in accounts}


def _query(
    query_id: str | None, sums: list[Account], batches: list[Account], source: Source | None
) -> Query:
    mine = [account for account in sums if account.query_id == query_id]
    numbers = {account.batch_id or 0 for account in batches if not account.own}
    newest = newest_own = max(numbers, default=0)
    if source is not None:
        newest = newest_own = source.committed
    elif newest not in {account.batch_id for account in batches if account.own}:
        # What a batch function has set aside so far may be of a batch that is under way.
        newest_own -= 1
    placeless: Counter[int] = Counter()
    for account in batches:
        if account.flow in {one.flow for one in mine} and not account.counts_lost:
            placeless[account.batch_id or 0] += _placeless(account)
    return Query(
        id=query_id,
        flows=tuple(account for account in mine if not account.own),
        own=tuple(account for account in mine if account.own),
        newest=(newest, newest_own),
        late=0 if source is None else source.late(numbers),
        offsets=None if source is None or source.ranges is None else source.offsets,
        placeless=placeless,
    )
