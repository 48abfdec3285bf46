"""Whether what a query needs can be reached: its brokers, asked before Spark asks, and its sinks.

Spark waits three minutes for a broker that is not there, and says nothing meanwhile.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from sparkguard.errors import ConfigError, SourceError
from sparkguard.frame import source_servers, source_topics
from sparkguard.sinks.base import Sink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

REACH_SECONDS: Final = 3.0
"""A broker that accepts no connection within so long does not answer."""


class Reach:
    """Checks once what a guard's queries need."""

    def __init__(self, sinks: Mapping[str, Sink]) -> None:
        self._sinks = sinks
        self._checked: set[tuple[str, frozenset[str]]] = set()
        self._reached: set[str] = set()

    def check_sources(self, frame: DataFrame) -> None:
        """See that the brokers of a frame's streams answer.

        Raises:
            SourceError: one does not.
        """
        for servers in source_servers(frame) - self._reached:
            if not answers(servers):
                raise SourceError(servers=servers)
            # A restart during an outage is left to Spark, which waits for the broker.
            self._reached.add(servers)

    def check_sinks(self, frame: DataFrame, names: Sequence[str]) -> None:
        """See that the named sinks can be written to, and are not what the frame reads.

        Raises:
            ConfigError: one is not there, or cannot be used.
        """
        topics = source_topics(frame)
        for name in names:
            sink = self._sinks.get(name)
            if sink is None:
                raise ConfigError(
                    f"No sink is named {name!r}; the settings have: {sorted(self._sinks)}."
                )
            if (name, topics) not in self._checked:
                sink.check(name, topics)
                self._checked.add((name, topics))


def answers(servers: str) -> bool:
    """Whether one of ``host:port``, several by comma, accepts a connection."""
    return any(_accepts(one.strip()) for one in servers.split(","))


def _accepts(server: str) -> bool:
    # A listener's name may stand in front, as in SSL://host:port.
    host, _, port = server.rpartition("//")[2].rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), REACH_SECONDS):
            return True
    except (OSError, ValueError, OverflowError):
        return False
