"""The work of one task: what its parts share."""

from __future__ import annotations

from dataclasses import dataclass

from sparkguard.executor.delivery import Delivery
from sparkguard.executor.plan import Plan
from sparkguard.executor.tally import Tally
from sparkguard.executor.task import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One task's plan and identity, its counts and its letters."""

    plan: Plan
    task: Task
    tally: Tally
    delivery: Delivery

    @classmethod
    def begin(cls, plan: Plan, task: Task) -> Work:
        """The work of a task that has done nothing yet."""
        return cls(
            plan=plan,
            task=task,
            tally=Tally(plan, task),
            delivery=Delivery(plan.app, plan.sinks, task),
        )
