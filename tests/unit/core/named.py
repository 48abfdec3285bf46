"""Exceptions of libraries that are not installed here, made by their qualified names.

The classifier knows classes by name, so a class of the same name is as good.
"""

from typing import Any


def named(path: str, *bases: type, **facts: Any) -> type[Exception]:
    """A class whose qualified name is `path`, with class attributes `facts`."""
    module, _, name = path.rpartition(".")
    return type(name, bases or (Exception,), {"__module__": module, **facts})


class Response:
    """A response as requests and httpx have it."""

    def __init__(self, status_code: int, headers: dict[str, str] | None = None) -> None:
        self.status_code = status_code
        self.headers = headers or {}
