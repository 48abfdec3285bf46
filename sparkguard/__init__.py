"""Exception handling and dead letters for PySpark pipelines.

The way of one record::

    source ─▶ flow: one Arrow pass, in the Python workers ─▶ DataFrame ─▶ foreach_batch ─▶ commit
              deserialize ─ map ─ filter ─ …                  (any Spark     (driver)
                   │ raises                                    operators)       │ raises
                   ▼                                                            ▼
              failure ▶ retry while transient, within the task timeout ▶ policy ▶ handler
                                                                                   │
                Continue      DeadLetter        Fail            Restart  ◀─────────┘
                count, log    sink, acked       task fails,     task fails with a reason;
                              before the        query stops     the supervisor starts it
                              task ends                         again

Stages are plain values made by decorators; a `Guard` binds settings to them.
Everything here is loaded when it is first used: importing sparkguard loads
neither pyspark nor confluent-kafka, and workers load only what they need.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    __version__: str
    from sparkguard.config.model import Settings
    from sparkguard.core.failure import Category, Cause, Failure
    from sparkguard.core.ledger import Account
    from sparkguard.core.letter import Letter
    from sparkguard.core.outcome import Continue, DeadLetter, Fail, Outcome, Restart
    from sparkguard.core.record import Record
    from sparkguard.errors import (
        ConfigError,
        RestartLimitError,
        SinkError,
        SparkguardError,
        StageError,
        StageFailedError,
    )
    from sparkguard.flow import Flow
    from sparkguard.formats.json import Json
    from sparkguard.formats.raw import Raw
    from sparkguard.formats.text import Text
    from sparkguard.frame import ORIGIN, RECORD
    from sparkguard.guard import Guard
    from sparkguard.hookspecs import hookimpl
    from sparkguard.stages.base import Stage
    from sparkguard.stages.deserialize import deserialize
    from sparkguard.stages.filter import filter
    from sparkguard.stages.flat_map import flat_map
    from sparkguard.stages.foreach_batch import foreach_batch
    from sparkguard.stages.map import map

_HOMES: Final = {
    "Account": "core.ledger",
    "Category": "core.failure",
    "Cause": "core.failure",
    "ConfigError": "errors",
    "Continue": "core.outcome",
    "DeadLetter": "core.outcome",
    "Fail": "core.outcome",
    "Failure": "core.failure",
    "Flow": "flow",
    "Guard": "guard",
    "Json": "formats.json",
    "Letter": "core.letter",
    "ORIGIN": "frame",
    "Outcome": "core.outcome",
    "RECORD": "frame",
    "Raw": "formats.raw",
    "Record": "core.record",
    "Restart": "core.outcome",
    "RestartLimitError": "errors",
    "Settings": "config.model",
    "SinkError": "errors",
    "SparkguardError": "errors",
    "Stage": "stages.base",
    "StageError": "errors",
    "StageFailedError": "errors",
    "Text": "formats.text",
    "deserialize": "stages.deserialize",
    "filter": "stages.filter",
    "flat_map": "stages.flat_map",
    "foreach_batch": "stages.foreach_batch",
    "hookimpl": "hookspecs",
    "map": "stages.map",
}

__all__ = [  # noqa: RUF022 - the keys are strings, sorted as ASCII sorts
    "Account",
    "Category",
    "Cause",
    "ConfigError",
    "Continue",
    "DeadLetter",
    "Fail",
    "Failure",
    "Flow",
    "Guard",
    "Json",
    "Letter",
    "ORIGIN",
    "Outcome",
    "RECORD",
    "Raw",
    "Record",
    "Restart",
    "RestartLimitError",
    "Settings",
    "SinkError",
    "SparkguardError",
    "Stage",
    "StageError",
    "StageFailedError",
    "Text",
    "deserialize",
    "filter",
    "flat_map",
    "foreach_batch",
    "hookimpl",
    "map",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from sparkguard.core.version import VERSION

        return VERSION
    home = _HOMES.get(name)
    if home is None:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    value = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
