"""Settle a batch: judge its budgets, store its accounts, tell the watchers."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from sparkguard.core.budget import Window
from sparkguard.core.failure import Failure
from sparkguard.core.ledger import FACTS, Account
from sparkguard.core.policy import Budget
from sparkguard.core.watch import BatchFinished
from sparkguard.driver.accounts import Accounts
from sparkguard.errors import StageFailedError
from sparkguard.events import BATCH_FINISHED, BUDGET_EXCEEDED, log
from sparkguard.hookspecs import Members
from sparkguard.plugins import notify

_SHOWN = 3


class Settler:
    """Ends every batch of a guard's queries, whoever drives it."""

    def __init__(self, app: str, accounts: Accounts, members: Members) -> None:
        self._app = app
        self._accounts = accounts
        self._members = members
        self._budgets: dict[tuple[str, str], Budget] = {}
        self._windows: dict[tuple[str | None, str, str], Window] = {}
        self._lock = threading.Lock()
        self.breaches: dict[str, StageFailedError] = {}

    def watch(self, flow: str, budgets: Mapping[str, Budget | None]) -> None:
        """Judge the stages of a flow by these budgets from now on."""
        for stage, budget in budgets.items():
            if budget is not None:
                self._budgets[flow, stage] = budget

    def settle(
        self, query_id: str | None, batch_id: int | None, query_name: str | None = None
    ) -> None:
        """End a batch; called before the commit where a batch function drives it.

        Raises:
            StageFailedError: a stage is over its budget; the batch must not be committed.
        """
        accounts = self._accounts.take(query_id, batch_id)
        for account in accounts:
            self._judge(account)
        self._accounts.store(accounts)
        for account in accounts:
            self._tell(account, query_name)

    def left(self, failure: Failure, fact: str, rows: int) -> None:
        """Account for a batch whose rows all left at its batch function."""
        counts = {**dict.fromkeys(FACTS, 0), "entered": rows, fact: rows, "failed_attempts": 1}
        account = Account(
            flow=failure.stage,
            query_id=failure.query_id,
            batch_id=failure.batch_id,
            records_in=rows,
            stages={failure.stage: counts},
        )
        self._accounts.store([account])
        self._tell(account, failure.query_name)

    def _judge(self, account: Account) -> None:
        for stage, counts in account.stages.items():
            budget = self._budgets.get((account.flow, stage))
            if budget is None:
                continue
            key = (account.query_id, account.flow, stage)
            with self._lock:
                window = self._windows.setdefault(key, Window(budget))
                window.add(counts["entered"], counts["skipped"] + counts["dead_lettered"])
                if not window.exceeded():
                    continue
                # A replay of this batch is judged anew, not on top of itself.
                del self._windows[key]
            raise _breach(account, stage, budget, window.sentence(stage))

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
    log(BUDGET_EXCEEDED, flow=account.flow, stage=stage, max_ratio=budget.max_ratio)
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
