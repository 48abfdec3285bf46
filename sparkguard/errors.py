"""The errors sparkguard raises, one tree.

    SparkguardError
    ├── ConfigError               the settings are wrong
    │   ├── InvalidSettingError   a value, with file, line, column and key path
    │   └── UnknownNameError      a name nobody registered; lists the known ones
    ├── StageError                a stage or flow is declared wrongly; raised when it is built
    ├── PluginError               a plugin is wrong; names its distribution
    │   └── DuplicateNameError    two members claim one name; names both
    ├── SinkError                 a letter could not be stored
    ├── LettersError              stored letters cannot be read, or were asked for wrongly
    ├── ProduceError              Kafka does not take a record
    │   └── TooLargeError         because it is too large
    ├── SourceError               what a query reads cannot be reached
    ├── WorkerCrashError          a record ended the worker's process
    ├── RecordTimeoutError        a record took longer than its stage allows
    ├── VersionError              an event may not change its key's state
    │   ├── NoKeyError            because it has no key, or no sequence number
    │   ├── DuplicateError        because it was applied already
    │   ├── StaleError            because a later one was applied
    │   ├── GapError              because one before it has not come
    │   └── ConflictError         because it was made for another version
    ├── StateError                a stored state is none of the type that it is declared to be
    ├── StageFailedError          an outcome said fail or restart; carries the failure's facts
    ├── UnsupportedError          the engine at hand cannot do it (Spark Connect)
    └── RestartLimitError         the supervisor's limit is used up; the process exits with 75

Each carries its facts as attributes, writes its own sentence and survives
pickling with every attribute intact: Spark moves exceptions between processes.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any, ClassVar


def _rebuild(cls: type[BaseException], args: tuple[Any, ...], state: dict[str, Any]) -> Any:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class SparkguardError(Exception):
    """The root: catch this to catch everything sparkguard raises on purpose."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args, dict(self.__dict__))


class ConfigError(SparkguardError):
    """The settings are wrong; nothing was started."""


class InvalidSettingError(ConfigError):
    """One setting is wrong; says where it stands and what would be right."""

    def __init__(
        self,
        problem: str,
        *,
        key_path: str = "",
        file: str | None = None,
        line: int | None = None,
        column: int | None = None,
    ) -> None:
        self.problem = problem
        self.key_path = key_path
        self.file = file
        self.line = line
        self.column = column
        place = ":".join(str(part) for part in (file, line, column) if part is not None)
        super().__init__(": ".join(part for part in (place, key_path, problem) if part))


class UnknownNameError(ConfigError):
    """A name that nobody registered; lists the known ones and the nearest."""

    def __init__(self, kind: str, name: str, known: Iterable[str], *, where: str = "") -> None:
        self.kind = kind
        self.name = name
        self.known = sorted(known)
        self.where = where
        near = get_close_matches(name, self.known, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        listed = ", ".join(repr(item) for item in self.known) or "none"
        prefix = f"{where}: " if where else ""
        super().__init__(f"{prefix}Unknown {kind} {name!r}.{hint} Known: {listed}.")


class StageError(SparkguardError):
    """A stage or a flow is declared wrongly; raised before any record is read."""

    def __init__(self, problem: str, *, stage: str | None = None) -> None:
        self.problem = problem
        self.stage = stage
        super().__init__(f"Stage {stage!r}: {problem}" if stage else problem)


class PluginError(SparkguardError):
    """A plugin cannot be used; names the distribution to fix or uninstall."""

    def __init__(self, problem: str, *, plugin: str, distribution: str | None = None) -> None:
        self.problem = problem
        self.plugin = plugin
        self.distribution = distribution
        origin = f" of distribution {distribution!r}" if distribution else ""
        super().__init__(f"Plugin {plugin!r}{origin}: {problem}")


class DuplicateNameError(PluginError):
    """Two plugins claim the same name for the same kind of member."""

    def __init__(self, kind: str, name: str, first: str, second: str) -> None:
        self.kind = kind
        self.name = name
        self.first = first
        super().__init__(f"the {kind} {name!r} is already registered by {first!r}.", plugin=second)


class SinkError(SparkguardError):
    """A letter could not be stored: the task fails, no record is skipped.

    Attributes:
        retriable: it may work later (an outage), so a restart makes sense.
    """

    def __init__(self, problem: str, *, sink: str, retriable: bool = True) -> None:
        self.problem = problem
        self.sink = sink
        self.retriable = retriable
        super().__init__(f"Sink {sink!r}: {problem}")


class LettersError(SparkguardError):
    """Stored letters cannot be read, or what was asked of them is wrong; nothing was changed."""


class ProduceError(SparkguardError):
    """Kafka does not take a record, or cannot be reached.

    Attributes:
        topic: where it was to go.
        code: librdkafka's name of the error, such as ``_UNKNOWN_PARTITION``.
        retriable: an outage, so a restart makes sense; else the record is at fault.
    """

    def __init__(
        self, sentence: str, *, topic: str = "", code: str = "", retriable: bool = False
    ) -> None:
        self.topic = topic
        self.code = code
        self.retriable = retriable
        super().__init__(sentence)


class TooLargeError(ProduceError):
    """A record is too large for its topic."""


class SourceError(SparkguardError):
    """What a query is to read cannot be reached: an outage, so a restart makes sense."""

    def __init__(self, *, servers: str) -> None:
        self.servers = servers
        super().__init__(
            f"The source cannot be read: no broker answers at {servers}. "
            "Start it, or correct the option kafka.bootstrap.servers."
        )


class WorkerCrashError(SparkguardError):
    """A record ended the process that worked on it, in careful mode.

    Attributes:
        how: the signal or the exit code.
    """

    def __init__(self, how: str) -> None:
        self.how = how
        super().__init__(f"The process that worked on this record {how}.")


class RecordTimeoutError(SparkguardError):
    """A record took longer in a stage than its ``record_timeout``; raised where it was.

    Attributes:
        seconds: what the stage allows.
    """

    def __init__(self, stage: str, seconds: float) -> None:
        self.stage = stage
        self.seconds = seconds
        super().__init__(f"Stage {stage!r} took longer than {seconds:g} s (record_timeout).")


class VersionError(SparkguardError):
    """An event may not change its key's state: it would go backwards, or skip something.

    Attributes:
        key: the state's key, shortened.
        version: of the state that is not changed.
    """

    def __init__(self, problem: str, *, key: str = "", version: int = 0) -> None:
        self.key = key
        self.version = version
        super().__init__(f"{problem} (key {key!r}, version {version})" if key else problem)


class NoKeyError(VersionError):
    """An event has no key, or no sequence number where its stage counts on one."""


class DuplicateError(VersionError):
    """An event of this id or sequence number was applied already."""


class StaleError(VersionError):
    """An event is older than what was applied already."""


class GapError(VersionError):
    """An event came before another one that did not come in time, or too many of them did."""


class ConflictError(VersionError):
    """An event expects another version than the state has."""


class StateError(SparkguardError):
    """A stored state is none of the type that it is declared to be: the code is wrong, or old."""


class UnsupportedError(SparkguardError):
    """The engine at hand cannot do what was asked; says what to use instead."""


class StageFailedError(SparkguardError):
    """An outcome said fail or restart: the query stops.

    A worker's exception reaches the driver as text only, so the facts travel in
    a marker at the end of the message, and `find` reads them back.

    Attributes:
        facts: stage, category, cause, action (``fail`` or ``restart``), reason,
            topic, partition, offset, exception type, message, attempts.
    """

    _MARKER: ClassVar[re.Pattern[str]] = re.compile(r"\[sparkguard:([A-Za-z0-9_=-]+)\]")

    def __init__(self, sentence: str, facts: Mapping[str, Any]) -> None:
        # What a record says must not pass for a marker of ours.
        sentence = sentence.replace("[sparkguard:", "[sparkguard ")
        self.sentence = sentence
        # `find` needs the sentence, whoever made the facts.
        self.facts = {"sentence": sentence, **facts}
        text = json.dumps(self.facts, separators=(",", ":"), default=str)
        marker = base64.urlsafe_b64encode(text.encode("utf-8", "replace")).decode()
        super().__init__(f"{sentence} [sparkguard:{marker}]")

    def __str__(self) -> str:
        return str(self.args[0])

    def plain(self) -> StageFailedError:
        """The same failure without the marker, for a person to read."""
        told = StageFailedError(self.sentence, self.facts)
        told.args = (self.sentence,)
        return told

    @property
    def action(self) -> str:
        """What the outcome asked for: ``fail`` or ``restart``."""
        return str(self.facts.get("action", "fail"))

    @classmethod
    def find(cls, text: str) -> StageFailedError | None:
        """The failure whose marker stands last in `text`, behind what records say, or None."""
        for match in reversed([*cls._MARKER.finditer(text)]):
            try:
                facts = json.loads(base64.urlsafe_b64decode(match[1]))
                return cls(str(facts["sentence"]), facts)
            except (ValueError, KeyError, TypeError):
                continue
        return None


class RestartLimitError(SparkguardError, SystemExit):
    """The restart limit is used up: the last cause is chained, the exit code is 75.

    75 is EX_TEMPFAIL of sysexits.h: a process manager may try again later.
    """

    # Of the class: SystemExit keeps an instance's code where pickling does not look.
    code = 75
