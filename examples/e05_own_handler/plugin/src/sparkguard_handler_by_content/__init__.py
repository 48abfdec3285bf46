"""The plugin: one handler, `by_content`, and the hook that registers it."""

from __future__ import annotations

from collections.abc import Mapping

from sparkguard.handlers.base import Handler
from sparkguard.hookspecs import hookimpl
from sparkguard_handler_by_content.handler import ByContentHandler


@hookimpl
def register_handlers() -> Mapping[str, type[Handler]]:
    """The name is what users write in YAML."""
    return {"by_content": ByContentHandler}
