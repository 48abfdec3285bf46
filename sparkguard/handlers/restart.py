"""restart: let the supervisor start the query again."""

from dataclasses import dataclass

from sparkguard.handlers.base import Failure, Outcome, Restart


@dataclass(frozen=True, slots=True)
class RestartHandler:
    """Fails the task and asks for a restart, which the supervisor grants within its limit.

    Without a supervisor (`guard.run`) the query just stops.
    """

    def decide(self, failure: Failure) -> Outcome:
        """Always `Restart`."""
        if failure.timed_out:
            return Restart("the task timeout ended while retrying")
        return Restart("the handler of this failure is 'restart'")
