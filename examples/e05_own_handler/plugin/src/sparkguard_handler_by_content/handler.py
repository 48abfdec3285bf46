"""by_content: keep the letters of records that hold a text, skip the rest."""

from __future__ import annotations

from dataclasses import dataclass

from sparkguard.handlers.base import Continue, DeadLetter, Failure, Outcome


@dataclass(frozen=True, slots=True)
class ByContentHandler:
    """Dead-letters a record whose value holds one of the texts; skips every other.

    A skipped record is lost on purpose: it is counted, not kept.

    Attributes:
        contains: the texts, compared as UTF-8 bytes.
        sink: name of the sink for the letters; None is the stage's own.
    """

    contains: tuple[str, ...]
    sink: str | None = None

    def decide(self, failure: Failure) -> Outcome:
        """A pure decision: what it needs stands in the failure and in the options."""
        value = failure.record.value or b""
        if any(text.encode() in value for text in self.contains):
            return DeadLetter(self.sink)
        return Continue()
