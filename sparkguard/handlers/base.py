"""The contract of a handler.

A handler is a frozen dataclass with one method, ``decide(failure) -> Outcome``.
Its fields are the options that users write in YAML (``handler: {type: name, option: …}``);
pydantic validates them and `sparkguard config schema` prints them. It is shipped
to the workers as a value, so it holds no clock, counter, lock or connection, and
its module must be importable there.

A handler that lets the pass go on whatever failed may say so in its class, ``goes_on:
ClassVar[bool] = True``: then up to 200 failures are decided about together, which costs two
fifths less. It gets them without the live exception, and subclasses do not inherit the promise.
``lets_go`` promises more: that it always decides `Continue`. Then events that a state has seen
already are only counted, but for the 1st, 10th, 100th of a kind in a task.
"""

from sparkguard.core.failure import Category, Cause, Failure
from sparkguard.core.outcome import Continue, DeadLetter, Fail, Outcome, Restart, RetryLater
from sparkguard.core.policy import Handler

__all__ = [
    "Category",
    "Cause",
    "Continue",
    "DeadLetter",
    "Fail",
    "Failure",
    "Handler",
    "Outcome",
    "Restart",
    "RetryLater",
]
