"""The HTTP server: where the counters are scraped."""

from __future__ import annotations

import logging
import os
import threading
from typing import Final
from urllib.parse import urlsplit

from prometheus_client import start_http_server

VARIABLE: Final = "SPARKGUARD_PROMETHEUS"
"""The environment variable that says where to listen, as ``127.0.0.1:9108``."""

_lock = threading.Lock()
_state: dict[str, str | None] = {}


def address() -> str | None:
    """``host:port`` of the server, None while there is none."""
    return _state.get("address")


def ensure_started() -> None:
    """Start the server, once a process, if the environment says where.

    Raises:
        ValueError: the address is none.
        OSError: nobody can listen there. There is no second try in either case.
    """
    with _lock:
        where = os.environ.get(VARIABLE)
        if "address" in _state or not where:
            return
        _state["address"] = None
        host, port = _host_and_port(where)
        server, _ = start_http_server(port, addr=host)
        bound = server.server_port
        _state["address"] = f"[{host}]:{bound}" if ":" in host else f"{host}:{bound}"
        logging.getLogger("sparkguard").info("counters are served at http://%s/metrics", address())


def _host_and_port(where: str) -> tuple[str, int]:
    try:
        parts = urlsplit(f"//{where}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host or port is None:
        raise ValueError(f"{VARIABLE} must be host:port, such as 127.0.0.1:9108, not {where!r}.")
    return host, port
