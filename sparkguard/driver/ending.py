"""The ending of a query: stopped on a thread of its own, since Spark may never return from it."""

from __future__ import annotations

import threading
from typing import Any


class Ending:
    """One call of ``query.stop()``, which waits for the batch in hand.

    A batch function that hangs in Python keeps it waiting for ever, and with it
    the thread that handles signals.
    """

    def __init__(self, query: Any, *, cut: bool) -> None:
        self.problem = "the batch in hand was cut off; it comes again" if cut else None
        self._query = query
        self._thread = threading.Thread(target=self._stop, name="sparkguard-stop", daemon=True)
        self._thread.start()

    @property
    def over(self) -> bool:
        """Whether the query is stopped, or Spark has given up on stopping it."""
        return not self._thread.is_alive()

    def wait(self, seconds: float) -> None:
        """Wait until it is over, at most so long."""
        self._thread.join(seconds)

    def _stop(self) -> None:
        try:
            self._query.stop()
        except Exception as error:
            # spark.sql.streaming.stopTimeout ran out, or the JVM is gone: there is no more to do.
            self.problem = f"stopping it raised {type(error).__name__}"
