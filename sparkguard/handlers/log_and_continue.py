"""log_and_continue: drop the record, count it, go on."""

from dataclasses import dataclass
from typing import ClassVar

from sparkguard.handlers.base import Continue, Failure, Outcome


@dataclass(frozen=True, slots=True)
class LogAndContinueHandler:
    """Skips the record: it is lost on purpose, counted and logged at a bounded rate."""

    goes_on: ClassVar[bool] = True
    lets_go: ClassVar[bool] = True

    def decide(self, failure: Failure) -> Outcome:
        """Always `Continue`."""
        return Continue()
