"""Check: one thing that an audit has computed twice, and what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from sparkguard.audit.outputs import OutputTopic
from sparkguard.deadletters.files import Skipped


class Verdict(StrEnum):
    """How a check ended."""

    OK = "ok"
    LOST = "counts lost"
    UNCHECKED = "not checked"
    MISSING = "missing"
    DOUBLED = "doubled"
    UNKNOWN = "not known"

    @property
    def fine(self) -> bool:
        """Whether nothing is known to be wrong: it adds up, as far as it can be told."""
        return self in {Verdict.OK, Verdict.LOST, Verdict.UNCHECKED}


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that was computed twice.

    Attributes:
        kind: ``account``, ``letters``, ``delayed``, ``source``, ``output``, ``places`` or
            ``reading``.
        of: the flow, the stage or the place.
        expected, found: what the one side says, and the other; None where it says nothing.
        why: a sentence, empty where nothing is to be said.
        places: coordinates, at most twenty.
    """

    kind: str
    of: str
    verdict: Verdict
    expected: int | None = None
    found: int | None = None
    why: str = ""
    places: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """What was found."""

    app: str
    checks: tuple[Check, ...]

    @property
    def adds_up(self) -> bool:
        """Whether nothing is missing, doubled or unreadable."""
        return self.passes()

    def passes(self, *, allow_doubled: bool = False) -> bool:
        """The same, where second copies may be fine: what is written is so at least once."""
        fine = {Verdict.DOUBLED} if allow_doubled else set()
        return all(check.verdict.fine or check.verdict in fine for check in self.checks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the ledger is held against, beside the sinks.

    Attributes:
        checkpoints: of queries; then only these are audited.
        outputs: folders or files of Parquet, and topics.
        flows: only these.
        holes: the source topics are compacted or transactional: not every offset is a record.
    """

    checkpoints: Sequence[str] = ()
    outputs: Sequence[str | OutputTopic] = ()
    flows: Sequence[str] = ()
    holes: bool = False


def verdict_of(expected: int, found: int, lost: int = 0) -> Verdict:
    """How two numbers compare, where `lost` of those that are expected need not be found."""
    if found == expected:
        return Verdict.LOST if lost else Verdict.OK
    if found > expected:
        return Verdict.DOUBLED
    return Verdict.LOST if expected - found <= lost else Verdict.MISSING


def unread(one: Skipped) -> Check:
    """What cannot be read is not known to be right."""
    return Check(
        kind="reading", of=one.place, verdict=Verdict.UNKNOWN, found=one.count, why=one.why
    )
