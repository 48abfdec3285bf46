"""dead_letter: keep the record and its failure in a sink, go on."""

from dataclasses import dataclass
from typing import ClassVar

from sparkguard.handlers.base import DeadLetter, Failure, Outcome


@dataclass(frozen=True, slots=True)
class DeadLetterHandler:
    """Stores the record as a letter; the task waits for the sink's acknowledgement.

    Attributes:
        sink: name of the sink; None is the stage's own.
    """

    goes_on: ClassVar[bool] = True

    sink: str | None = None

    def decide(self, failure: Failure) -> Outcome:
        """Always `DeadLetter`."""
        return DeadLetter(self.sink)
