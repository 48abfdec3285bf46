"""Route: which handler decides about a failure. One order for every stage.

Cause first, then exception, then the stage's handler; so handlers of a stage
see poison only, and an outage is nobody's dead letter unless the settings say so.
"""

from __future__ import annotations

from typing import Final, assert_never

from sparkguard.core.failure import Cause, Failure
from sparkguard.core.fingerprint import canonical
from sparkguard.core.policy import Handler, Policy

CRASH: Final = "sparkguard.errors.WorkerCrashError"


def route(failure: Failure, policy: Policy) -> Handler:
    """The handler that decides about `failure` under `policy`."""
    match failure.cause:
        case Cause.TRANSIENT:
            return policy.on_transient
        case Cause.PROGRAMMING:
            return policy.on_programming
        case Cause.FATAL:
            crashed = CRASH in failure.exception_types
            return policy.on_crash if crashed and policy.on_crash else policy.on_fatal
        case Cause.POISON:
            special = _by_exception(failure, policy)
            return policy.handler if special is None else special
        case _:
            assert_never(failure.cause)


def _by_exception(failure: Failure, policy: Policy) -> Handler | None:
    if not policy.by_exception:
        return None
    handlers = {canonical(name): handler for name, handler in policy.by_exception}
    return next((handlers[name] for name in failure.exception_types if name in handlers), None)
