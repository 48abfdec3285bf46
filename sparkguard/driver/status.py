"""Status: what an app's state tells of it, without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import unquote

from sparkguard.core.ledger import Account
from sparkguard.driver.accounts import Accounts
from sparkguard.driver.clock import SystemClock
from sparkguard.driver.documents import document_of
from sparkguard.driver.journal import Journals
from sparkguard.driver.ledger import Ledger
from sparkguard.driver.restarts import Limit, Restarts
from sparkguard.driver.state import BREACHES, State


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowStatus:
    """One flow of one query, or of batch frames, which have no query.

    Attributes:
        total: over all batches.
        last: the newest batch.
        stored_at: when the account was written last.
    """

    total: Account
    last: Account | None
    stored_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartStatus:
    """The restarts of one query.

    Attributes:
        refusal: why it would not be restarted now; None if it would.
    """

    query: str
    since_commit: int
    within_an_hour: int
    refusal: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """What the state tells.

    Attributes:
        stop_requested: the stop marker is set.
        breaches: sentences of budgets that stopped a query, and no batch was committed since.
        careful: queries whose tasks look for what ended a worker.
        isolations: batches whose bad rows are being looked for.
        standing: entries in files that no account has yet.
    """

    path: str
    flows: tuple[FlowStatus, ...]
    restarts: tuple[RestartStatus, ...]
    limit: Limit
    stop_requested: bool
    breaches: tuple[str, ...]
    careful: tuple[str, ...]
    isolations: tuple[str, ...]
    standing: int

    @property
    def needs_a_person(self) -> bool:
        """Whether nothing goes on by itself: a budget is exceeded, or a limit used up."""
        return bool(self.breaches or any(one.refusal for one in self.restarts))


def status(state: State, limit: Limit) -> Status:
    """Look at an app; it may run meanwhile.

    Raises:
        SparkguardError: a document of the state cannot be understood.
    """
    accounts = Accounts(state)
    accounts.files()
    flows = tuple(_flows(state, Ledger(state, accounts.pending)))
    told = {name.rpartition("/")[2]: state.load(name) or {} for name in state.names(BREACHES)}
    return Status(
        path=state.path,
        flows=flows,
        restarts=tuple(_restarts(state, limit)),
        limit=limit,
        stop_requested=state.stop_requested(),
        breaches=tuple(_breaches(state, told, flows)),
        careful=tuple(query for query, one in told.items() if one.get("careful")),
        isolations=tuple(_isolations(state)),
        standing=len(state.entry_names()),
    )


def _flows(state: State, ledger: Ledger) -> Iterator[FlowStatus]:
    batches = ledger.batches()
    for total in sorted(ledger.sums({}), key=lambda one: (one.flow, one.query_id or "")):
        place = (total.flow, total.query_id, total.own)
        mine = [one for one in batches if (one.flow, one.query_id, one.own) == place]
        yield FlowStatus(
            total=total,
            last=max(mine, key=lambda one: one.batch_id or 0, default=None),
            stored_at=state.written_at(document_of(total)),
        )


def _restarts(state: State, limit: Limit) -> Iterator[RestartStatus]:
    for name in state.names("restarts"):
        query = unquote(name.rpartition("/")[2])
        known = Restarts(state, query, limit, SystemClock())
        yield RestartStatus(
            query=query,
            since_commit=known.since_commit,
            within_an_hour=known.within_an_hour,
            refusal=known.refusal(),
        )


def _breaches(
    state: State, told: dict[str, dict[str, dict[str, str]]], flows: tuple[FlowStatus, ...]
) -> Iterator[str]:
    for query, one in told.items():
        if "facts" not in one:
            continue
        # It stands until it is replaced; a batch that was counted later shows that it is over.
        since = state.written_at(f"{BREACHES}/{query}")
        counted = [it.stored_at for it in flows if it.total.query_id == query and it.stored_at]
        if since is None or max(counted, default=since) <= since:
            yield str(one["facts"].get("sentence", ""))


def _isolations(state: State) -> Iterator[str]:
    for stage, query, journal in Journals(state).open():
        done, rows = journal.progress.done, journal.plan.rows
        batch = journal.plan.batch_id
        yield f"{stage}, batch {batch} of query {query}: {done:,} of {rows:,} rows are done"
