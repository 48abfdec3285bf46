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
    from sparkguard.core.outcome import Continue, DeadLetter, Fail, Outcome, Restart, RetryLater
    from sparkguard.core.partial import PartialFailure
    from sparkguard.core.record import Record
    from sparkguard.core.sub_batch import SubBatch
    from sparkguard.core.update import KEEP, Update
    from sparkguard.errors import (
        ConfigError,
        ProduceError,
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
    from sparkguard.stages.map_batches import map_batches
    from sparkguard.stages.produce import produce
    from sparkguard.stages.stateful import stateful

_HOMES: Final = {
    name: home
    for home, names in {
        "config.model": "Settings",
        "core.failure": "Category Cause Failure",
        "core.ledger": "Account",
        "core.letter": "Letter",
        "core.outcome": "Continue DeadLetter Fail Outcome Restart RetryLater",
        "core.partial": "PartialFailure",
        "core.record": "Record",
        "core.sub_batch": "SubBatch",
        "core.update": "KEEP Update",
        "errors": "ConfigError ProduceError RestartLimitError SinkError SparkguardError "
        "StageError StageFailedError",
        "flow": "Flow",
        "formats.json": "Json",
        "formats.raw": "Raw",
        "formats.text": "Text",
        "frame": "ORIGIN RECORD",
        "guard": "Guard",
        "hookspecs": "hookimpl",
        "stages.base": "Stage",
        "stages.deserialize": "deserialize",
        "stages.filter": "filter",
        "stages.flat_map": "flat_map",
        "stages.foreach_batch": "foreach_batch",
        "stages.map": "map",
        "stages.map_batches": "map_batches",
        "stages.produce": "produce",
        "stages.stateful": "stateful",
    }.items()
    for name in names.split()
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
    "KEEP",
    "Letter",
    "ORIGIN",
    "Outcome",
    "PartialFailure",
    "ProduceError",
    "RECORD",
    "Raw",
    "Record",
    "Restart",
    "RestartLimitError",
    "RetryLater",
    "Settings",
    "SinkError",
    "SparkguardError",
    "Stage",
    "StageError",
    "StageFailedError",
    "SubBatch",
    "Text",
    "Update",
    "deserialize",
    "filter",
    "flat_map",
    "foreach_batch",
    "hookimpl",
    "map",
    "map_batches",
    "produce",
    "stateful",
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
