"""sparkguard's counters for Prometheus: a plugin that watches.

The counters live on the driver, in prometheus_client's default registry. With
``SPARKGUARD_PROMETHEUS=host:port`` in the environment they are served over HTTP.
"""

from importlib.resources import files

from sparkguard_prometheus.server import address
from sparkguard_prometheus.watch import (
    on_batch_finished,
    on_query_failed,
    on_query_started,
    on_query_stopped,
    on_restart_refused,
    on_restart_scheduled,
)

__all__ = [
    "address",
    "dashboard",
    "on_batch_finished",
    "on_query_failed",
    "on_query_started",
    "on_query_stopped",
    "on_restart_refused",
    "on_restart_scheduled",
]


def dashboard() -> str:
    """The dashboard for Grafana, as the JSON that it imports."""
    return files(__name__).joinpath("dashboard.json").read_text(encoding="utf-8")
