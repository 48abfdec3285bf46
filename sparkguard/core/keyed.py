"""What a stateful stage says of its keys: which columns count, and what is remembered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sparkguard.core.versions import Rules


@dataclass(frozen=True, slots=True, kw_only=True)
class Keyed:
    """The declaration of a stateful stage.

    Attributes:
        key: the column whose value owns a state.
        state: the state's type.
        rules: how an event's own facts are judged.
        sequence, event_id, expected_version: the columns of these, if it has them.
        gap_timeout: seconds that later events wait for a missing one.
        ttl: seconds after its last change in which a state is forgotten; None for never.
        on_timer: the function of state and time that a key's timer calls.
    """

    key: str
    state: Any
    rules: Rules
    sequence: str | None = None
    event_id: str | None = None
    expected_version: str | None = None
    gap_timeout: float = 300.0
    ttl: float | None = None
    on_timer: Callable[..., Any] | None = None

    @property
    def facts(self) -> tuple[str | None, str | None, str | None]:
        """The columns of an event's facts, in the order of `Facts`."""
        return self.sequence, self.event_id, self.expected_version

    @property
    def timed(self) -> bool:
        """Whether anything happens at a time, and not for an event."""
        return self.on_timer is not None or self.ttl is not None or self.rules.first is not None
