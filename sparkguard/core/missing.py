"""The sentence for a module that the driver has and a worker has not."""

from __future__ import annotations


def missing_on_worker(error: ImportError) -> str:
    """What to tell a user whose flow could not be unpickled in a worker because of `error`."""
    name = getattr(error, "name", None)
    what = f"The module {name!r}" if name else "A module"
    return (
        f"{what} cannot be imported on this worker ({type(error).__name__}: {error}). "
        "Stages, handlers and sinks of importable modules travel by name: install the module "
        "or the plugin on every worker, or ship it with --py-files or spark.submit.pyFiles."
    )
