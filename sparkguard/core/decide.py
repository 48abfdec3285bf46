"""Decide: ask the right handler, and hold it to its contract."""

from __future__ import annotations

from typing import Any

from sparkguard.core.failure import Category, Cause, Failure
from sparkguard.core.outcome import Outcome
from sparkguard.core.policy import Policy
from sparkguard.core.route import route
from sparkguard.errors import SinkError, StageFailedError


def decide(failure: Failure, policy: Policy) -> Outcome:
    """The outcome for a failure.

    Raises:
        StageFailedError: the handler raised or returned no outcome (P13); the
            failure's own exception stays in the chain.
    """
    handler = route(failure, policy)
    name = type(handler).__name__
    try:
        outcome = handler.decide(failure)
    except BaseException as error:
        reason = f"the handler {name} raised {type(error).__name__} instead of deciding"
        raise stage_failed(failure, "fail", reason) from (failure.exception or error)
    if not isinstance(outcome, Outcome):
        reason = f"the handler {name} returned {type(outcome).__name__}, which is no outcome"
        raise stage_failed(failure, "fail", reason) from failure.exception
    return outcome


def stage_failed(failure: Failure, action: str, reason: str) -> StageFailedError:
    """The error that stops the query for `failure`; it carries the failure's facts."""
    record = failure.record
    where = f" at {record.coordinates}" if record.coordinates else ""
    flow = f" of flow {failure.flow!r}" if failure.flow else ""
    said = f": {failure.message[:500]}" if failure.message else ""
    because = f", because {reason.rstrip('.')}" if reason else ""
    sentence = (
        f"Stage {failure.stage!r}{flow} failed{where} "
        f"({failure.category}, {failure.cause}, attempt {failure.attempts}) with "
        f"{failure.exception_type}{said}; decided: {action}"
        f"{because}."
    )
    facts: dict[str, Any] = {
        "sentence": sentence,
        "action": action,
        "reason": reason,
        "app": failure.app,
        "flow": failure.flow,
        "stage": failure.stage,
        "category": failure.category.value,
        "cause": failure.cause.value,
        "exception_type": failure.exception_type,
        "message": failure.message[:500],
        "attempts": failure.attempts,
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "file": record.file,
        "batch_id": failure.batch_id,
    }
    return StageFailedError(sentence, facts)


def not_stored(
    app: str, flow: str, error: SinkError, failure: Failure | None = None
) -> StageFailedError:
    """The error that stops the query because a sink did not store a letter (P2).

    Args:
        failure: what the letter tells of, where it is one; a flush is about several.
    """
    about = ""
    facts: dict[str, Any] = {}
    if failure is not None:
        record = failure.record
        at = f" at {record.coordinates}" if record.coordinates else ""
        about = f" (stage {failure.stage!r}{at})"
        facts = {"stage": failure.stage, "topic": record.topic, "file": record.file}
        facts |= {"partition": record.partition, "offset": record.offset}
    sentence = f"Flow {flow!r} could not store its letters{about}: {error}"
    facts |= {
        "sentence": sentence,
        "action": "restart" if error.retriable else "fail",
        "reason": "a letter that cannot be stored is never skipped",
        "app": app,
        "flow": flow,
        "sink": error.sink,
        "category": Category.PRODUCTION.value,
        "cause": (Cause.TRANSIENT if error.retriable else Cause.POISON).value,
        "exception_type": "sparkguard.errors.SinkError",
        "message": error.problem[:500],
    }
    return StageFailedError(sentence, facts)
