"""Whether a query's brokers answer at all, asked before Spark asks.

Spark waits three minutes for a broker that is not there, and says nothing meanwhile.
"""

from __future__ import annotations

import socket
from typing import Final

REACH_SECONDS: Final = 3.0
"""A broker that accepts no connection within so long does not answer."""


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
