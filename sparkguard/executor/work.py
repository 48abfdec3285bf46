"""The work of one task: what its parts share."""

from __future__ import annotations

from dataclasses import dataclass

from sparkguard.core.decide import not_stored
from sparkguard.errors import SinkError, StageFailedError
from sparkguard.executor.delivery import Delivery
from sparkguard.executor.plan import Plan
from sparkguard.executor.tally import Tally
from sparkguard.executor.task import StoppedError, Task


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

    def flush(self) -> None:
        """Return when every letter is stored for good.

        Raises:
            StageFailedError: a sink did not store one.
        """
        try:
            self.delivery.flush()
        except SinkError as error:
            raise not_stored(self.plan.app, self.plan.flow, error) from error

    def stopped(self, stopped: StoppedError) -> StageFailedError:
        """The error of a task that is being stopped."""
        sentence = f"Flow {self.plan.flow!r} stopped while it waited: {stopped}"
        facts = {"action": "stop", "flow": self.plan.flow, "app": self.plan.app}
        return StageFailedError(sentence, {"sentence": sentence, **facts})
