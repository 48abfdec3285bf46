"""fail: stop the query at the first failure."""

from dataclasses import dataclass

from sparkguard.handlers.base import Fail, Failure, Outcome


@dataclass(frozen=True, slots=True)
class FailHandler:
    """Fails the task: the query stops and the batch is not committed."""

    def decide(self, failure: Failure) -> Outcome:
        """Always `Fail`."""
        return Fail("the handler of this stage is 'fail'")
