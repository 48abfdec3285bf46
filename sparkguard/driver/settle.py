"""Settle a batch: judge its budgets, store its accounts, tell the watchers."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from sparkguard.core.budget import Window
from sparkguard.core.failure import Failure
from sparkguard.core.ledger import FACTS, FAILED, Account, Counts, Top
from sparkguard.core.policy import Budget
from sparkguard.core.watch import BatchFinished
from sparkguard.driver.accounts import Accounts
from sparkguard.driver.breaches import Breaches
from sparkguard.driver.journal import Progress
from sparkguard.errors import StageFailedError
from sparkguard.events import BATCH_FINISHED, BUDGET_EXCEEDED, log
from sparkguard.hookspecs import Members
from sparkguard.plugins import load, notify

_SHOWN = 3

_Key = tuple[str | None, str, str]


@dataclass(frozen=True, slots=True)
class _Judged:
    """A stage's window around its latest batch: a replay starts from `before` again."""

    batch_id: int | None
    before: Window
    after: Window


class Settler:
    """Ends every batch of a guard's queries, whoever drives it.

    Attributes:
        accounts: where the accounts of settled batches are stored.
        breaches: budgets found exceeded after the commit.
        on_commit: who is told of each query's batch that Spark has committed.
    """

    def __init__(self, app: str, accounts: Accounts, members: Members, breaches: Breaches) -> None:
        self._app = app
        self.accounts = accounts
        self._members = members
        self.breaches = breaches
        self._budgets: dict[tuple[str, str], Budget] = {}
        self._windows: dict[_Key, _Judged] = {}
        self._driven: set[str] = set()
        self.on_commit: list[Callable[[str, int], None]] = []
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        known = None if self._members is load() else self._members
        return _arrived, (self._app, self.accounts, known, self.breaches), self._budgets

    def __setstate__(self, budgets: dict[tuple[str, str], Budget]) -> None:
        self._budgets = budgets

    def watch(self, flow: str, budgets: Mapping[str, Budget | None]) -> None:
        """Judge the stages of a flow by these budgets from now on."""
        for stage, budget in budgets.items():
            if budget is not None:
                self._budgets[flow, stage] = budget

    def settle(
        self,
        query_id: str | None,
        batch_id: int | None,
        query_name: str | None = None,
        *,
        committed: bool = False,
    ) -> frozenset[str]:
        """End a batch; called before the commit where a batch function drives it.

        Returns the flows that have an account in it.

        Args:
            committed: Spark has committed the batch, so it is stored whatever its budget says.

        Raises:
            StageFailedError: a stage is over its budget; if the batch is not committed, it
                must not be.
        """
        if query_id is not None and not committed:
            self._driven.add(query_id)
        if query_id is not None and batch_id is not None and committed:
            self.breaches.committed(query_id)
            for told in tuple(self.on_commit):
                told(query_id, batch_id)
        # After the commit the next batch may run already, and what has no batch is its own.
        strays = not committed or query_id not in self._driven
        accounts = self.accounts.take(query_id, batch_id, strays=strays)
        breach = self._judge(accounts, query_id)
        final = committed or batch_id is None
        if breach is not None and not final:
            raise breach
        self.accounts.store(accounts, keep=final)
        for account in accounts:
            self._tell(account, query_name)
        if breach is not None and batch_id is not None:
            raise breach
        return frozenset(account.flow for account in accounts)

    def left(self, failure: Failure, fact: str, rows: int) -> None:
        """Account for a batch whose rows all left at its batch function."""
        self._own(failure, {"entered": rows, fact: rows})

    def passed(self, failure: Failure) -> None:
        """Account for a batch that got through after so many failed tries as `failure` counts."""
        self._own(failure, {})

    def clean(self, stage: str, query_id: str | None, batch_id: int) -> None:
        """Take back what an earlier run of this batch had to say: now nothing failed in it."""
        self.accounts.drop(stage, query_id, batch_id)

    def isolated(self, failure: Failure, rows: int, progress: Progress) -> None:
        """Account for a batch whose bad rows were found: the others are written."""
        facts = {
            "entered": rows,
            "dead_lettered": progress.dead_lettered,
            "skipped": progress.skipped,
            "failed_attempts": progress.failed,
            "retries": progress.retries,
        }
        self._store_own(failure, facts, progress.written, tuple(progress.top))

    def _own(self, failure: Failure, facts: Counts) -> None:
        attempts = failure.attempts
        tries = {"failed_attempts": attempts, "retries": attempts - (1 if facts else 0)}
        self._store_own(failure, {**facts, **tries}, 0)

    def _store_own(
        self, failure: Failure, facts: Counts, out: int, top: tuple[Top, ...] = ()
    ) -> None:
        stage = failure.stage
        account = Account(
            flow=stage,
            query_id=failure.query_id,
            batch_id=failure.batch_id,
            records_in=facts.get("entered", 0),
            records_out=out,
            rows_out=out,
            stages={stage: {**dict.fromkeys(FACTS, 0), **facts}},
            top=tuple(sorted(top, key=lambda one: -one.count)),
            own=True,
        )
        self.accounts.store([account])
        self._tell(account, failure.query_name)

    def _judge(self, accounts: Sequence[Account], query_id: str | None) -> StageFailedError | None:
        judged: dict[_Key, _Judged] = {}
        with self._lock:
            for account, stage, budget in self._budgeted(accounts):
                key = (account.query_id, account.flow, stage)
                judged[key] = one = self._judged(key, account, budget)
                if one.after.exceeded():
                    # A query that starts again has its whole budget, in all of its stages.
                    gone = [key for key in self._windows if key[0] == query_id]
                    for key in gone:
                        del self._windows[key]
                    return _breach(account, stage, budget, one.after.sentence(stage))
            self._windows.update(judged)
        return None

    def _budgeted(self, accounts: Sequence[Account]) -> Iterator[tuple[Account, str, Budget]]:
        for account in accounts:
            for stage in account.stages:
                budget = self._budgets.get((account.flow, stage))
                if budget is not None:
                    yield account, stage, budget

    def _judged(self, key: _Key, account: Account, budget: Budget) -> _Judged:
        known = self._windows.get(key)
        if known is None:
            before = Window(budget)
        elif account.batch_id is not None and known.batch_id == account.batch_id:
            before = known.before
        else:
            before = known.after
        after = deepcopy(before)
        counts = account.stages[key[2]]
        bad = sum(counts.get(fact, 0) for fact in FAILED) - counts.get("repeated", 0)
        after.add(counts["entered"], bad)
        return _Judged(account.batch_id, before, after)

    def _tell(self, account: Account, query_name: str | None) -> None:
        log(
            BATCH_FINISHED,
            flow=account.flow,
            batch_id=account.batch_id,
            query_id=account.query_id,
            records_in=account.records_in,
            records_out=account.records_out,
            filtered=account.total("filtered"),
            skipped=account.total("skipped"),
            dead_lettered=account.total("dead_lettered"),
            delayed=account.total("delayed"),
            retries=account.total("retries"),
            failures=[
                f"{top.count}x {top.stage}: {top.exception_type} at {top.coordinates}"
                for top in account.top[:_SHOWN]
            ],
        )
        event = BatchFinished(
            app=self._app,
            flow=account.flow,
            query_name=query_name,
            query_id=account.query_id,
            batch_id=account.batch_id,
            account=account,
        )
        notify(self._members, event)


def _breach(account: Account, stage: str, budget: Budget, sentence: str) -> StageFailedError:
    log(
        BUDGET_EXCEEDED,
        level=logging.ERROR,
        flow=account.flow,
        stage=stage,
        batch_id=account.batch_id,
        max_ratio=budget.max_ratio,
    )
    facts = {
        "sentence": sentence,
        "action": budget.then,
        "reason": "budget",
        "cause": "transient" if budget.then == "restart" else "poison",
        "flow": account.flow,
        "stage": stage,
        "batch_id": account.batch_id,
    }
    return StageFailedError(sentence, facts)


def _arrived(app: str, accounts: Accounts, members: Members | None, breaches: Breaches) -> Settler:
    """A settler in another process; what is installed is found there again."""
    return Settler(app, accounts, members or load(), breaches)
