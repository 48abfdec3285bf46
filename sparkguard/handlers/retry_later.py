"""retry_later: put the record off, and have it come again after a while."""

import functools
import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, Literal, assert_never

from sparkguard.core.replay import retries
from sparkguard.errors import InvalidSettingError, UnknownNameError
from sparkguard.handlers.base import (
    Continue,
    DeadLetter,
    Fail,
    Failure,
    Outcome,
    Restart,
    RetryLater,
)

SINK: Final = "retry"
"""Name of the sink that is the retry topic, where none is given."""

Schedule = Callable[[datetime, int, Failure], datetime | None]
"""The due time from the time of the failure, the delays so far and the failure; None is no more."""


@dataclass(frozen=True, slots=True)
class RetryLaterHandler:
    """Stores the record in a retry topic, from which `sparkguard retry-service` sends it back.

    It comes behind what was processed meanwhile: the order of its key is given up.

    Attributes:
        delays: how long each time, as `[1m, 10m, 1h]`; a record is put off so many times.
        then: what becomes of a record that fails after the last delay: `dead_letter`,
            `log_and_continue`, `fail` or `restart`.
        schedule: `module:function` instead of delays; gives the due time from now, the number
            of delays so far and the failure, or None for `then`.
        sink: name of the sink that is the retry topic: of type `kafka`, dialect `native`.
    """

    delays: tuple[timedelta, ...] = ()
    then: Literal["dead_letter", "log_and_continue", "fail", "restart"] = "dead_letter"
    schedule: str | None = None
    sink: str = SINK

    def __post_init__(self) -> None:
        if bool(self.delays) == bool(self.schedule):
            problem = "Say when to try again: either 'delays', as [1m, 10m, 1h], or 'schedule'."
            raise InvalidSettingError(problem)
        if self.schedule:
            _function(self.schedule)

    def decide(self, failure: Failure) -> Outcome:
        """`RetryLater` while there is a delay left, then what `then` says."""
        now, attempt = failure.last_failed_at or datetime.now(UTC), retries(failure.record)
        due: datetime | None = None
        if self.schedule:
            due = _function(self.schedule)(now, attempt, failure)
            if due is not None and not isinstance(due, datetime):
                msg = f"{self.schedule} gave {type(due).__name__}, and no datetime or None"
                raise TypeError(msg)
        elif attempt < len(self.delays):
            due = now + self.delays[attempt]
        return self._then(attempt) if due is None else RetryLater(due, self.sink)

    def _then(self, attempt: int) -> Outcome:
        match self.then:
            case "dead_letter":
                return DeadLetter()
            case "log_and_continue":
                return Continue()
            case "fail":
                return Fail(f"it failed again after {attempt} delays")
            case "restart":
                return Restart(f"it failed again after {attempt} delays")
            case _:
                assert_never(self.then)


@functools.cache
def _function(name: str) -> Schedule:
    """The function ``module:function``.

    Raises:
        InvalidSettingError: there is none, or its module cannot be imported.
    """
    module, _, own = name.partition(":")
    if not module or not own:
        problem = f"{name!r} is not written as module:function."
        raise InvalidSettingError(problem, key_path="schedule")
    try:
        # The program that runs must not be imported, and run, a second time.
        main = sys.modules["__main__"]
        spec = getattr(main, "__spec__", None)
        running = spec.name if spec else Path(getattr(main, "__file__", None) or "").stem
        found = main if module == running else importlib.import_module(module)
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        problem = f"The module {module!r} of {name!r} cannot be imported: {why}."
        raise InvalidSettingError(problem, key_path="schedule") from error
    function = getattr(found, own, None)
    if not callable(function):
        known = [key for key, value in vars(found).items() if callable(value) and key[0] != "_"]
        problem = str(UnknownNameError("function", own, known, where=module))
        raise InvalidSettingError(problem, key_path="schedule")
    made: Schedule = function
    return made
