"""The state: a directory of the app, on any filesystem."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any, Final

from sparkguard import filesystem
from sparkguard.driver.directory import Directory
from sparkguard.errors import ConfigError, SparkguardError

_STOP = "stop"
BREACHES: Final = "breaches"
"""Folder of what the tasks of each query are told."""
ENTRIES: Final = "entries"
"""Folder of the entries that come as files, until an account has them."""
_PROBE = "writable"


class State:
    """The app's directory: ledger, restart limits, isolation journals and the stop marker."""

    def __init__(self, path: str) -> None:
        self._files = Directory(path)

    def __reduce__(self) -> tuple[Any, ...]:
        return State, (self.path,)

    @classmethod
    def at(cls, path: str | None, app: str) -> State:
        """The state at a path or URI, or at ``state/<app>`` when none is set."""
        return cls(path or f"state/{app}")

    @property
    def path(self) -> str:
        """The directory, absolute."""
        return self._files.path

    def exists(self) -> bool:
        """Whether an app has kept anything here."""
        return filesystem.exists(self.path)

    @property
    def stop_marker(self) -> str:
        """Path of the marker that asks the app's queries to stop."""
        return self._files.at(_STOP)

    def check(self) -> None:
        """Write a file and remove it again.

        Raises:
            ConfigError: nothing can be written here, so nothing should be started.
        """
        try:
            self._files.write(_PROBE, b"")
            self._files.delete(_PROBE)
        except Exception as error:
            msg = f"The state at {self.path!r} cannot be written: {type(error).__name__}: {error}."
            raise ConfigError(msg) from error

    def request_stop(self) -> None:
        """Ask the app's queries to stop between two batches, from any machine."""
        self._files.write(_STOP, b"stop\n")

    def stop_requested(self) -> bool:
        """Whether the stop marker is set."""
        return filesystem.exists(self.stop_marker)

    def clear_stop(self) -> None:
        """Remove the stop marker."""
        self._files.delete(_STOP)

    @property
    def breaches(self) -> str:
        """Path of the folder in which tasks look for the breach of their query."""
        return self._files.at(BREACHES)

    @property
    def entries(self) -> str:
        """Path of the folder to which tasks write their entries on Spark Connect."""
        return self._files.at(ENTRIES)

    def entry_names(self) -> list[str]:
        """Names of the entries' documents of all queries, sorted; one listing."""
        fs, root = filesystem.resolve(self.entries)
        paths = (path.split("/")[-2:] for path in filesystem.list(fs, root, recursive=True))
        found = (f"{ENTRIES}/{folder}/{name}" for folder, name in paths)
        return [name[:-5] for name in found if name.endswith(".json")]

    def store_breach(self, query_id: str, document: Any) -> None:
        """Tell the tasks of a query of its breach; replaces an older one."""
        self.store(f"{BREACHES}/{query_id}", document)

    def asks_for_care(self, query_id: str) -> bool:
        """Whether the tasks of a query are told to be careful."""
        return bool((self.load(f"{BREACHES}/{query_id}") or {}).get("careful"))

    def drop_breach(self, query_id: str) -> None:
        """Tell the tasks of a query nothing any more."""
        self.delete(f"{BREACHES}/{query_id}")

    def load(self, name: str) -> Any:
        """The JSON document of that name, or None.

        Raises:
            SparkguardError: there is one, and it cannot be understood.
        """
        text = self._files.read(f"{name}.json")
        if text is None:
            return None
        try:
            return json.loads(text)
        except ValueError as error:
            place = self._files.at(f"{name}.json")
            msg = f"The state's file {place!r} is no JSON; move it away to go on without it."
            raise SparkguardError(msg) from error

    def store(self, name: str, document: Any) -> None:
        """Replace the JSON document of that name, all of it or nothing."""
        text = json.dumps(document, separators=(",", ":")).encode()
        self._files.write(f"{name}.json", text)

    def delete(self, name: str) -> None:
        """Remove the JSON document of that name, if there is one."""
        self._files.delete(f"{name}.json")

    def written_at(self, name: str) -> datetime | None:
        """When the JSON document of that name was stored; None where nobody knows."""
        return self._files.written_at(f"{name}.json")

    def names(self, folder: str) -> list[str]:
        """Names of the documents in a folder, without their suffix, sorted."""
        found = self._files.names(folder)
        return sorted(f"{folder}/{name[:-5]}" for name in found if name.endswith(".json"))
