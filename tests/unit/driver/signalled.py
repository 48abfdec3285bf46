"""A program that supervises a fake query, for signals from outside: STATE and a script's name."""

import logging
import signal
import sys
from collections.abc import Iterator
from itertools import cycle, repeat
from pathlib import Path

from sparkguard.driver.clock import SystemClock
from sparkguard.driver.restarts import Limit, Restarts
from sparkguard.driver.run import Desk, Run
from sparkguard.driver.state import State
from sparkguard.driver.stop import Stop
from sparkguard.driver.supervisor import Supervisor
from sparkguard.testing.queries import BATCH, BUSY, Act, FakeQuery

SCRIPTS: dict[str, Iterator[Act]] = {
    "batches": cycle([BUSY, BUSY, BATCH]),
    "one long batch": repeat(BUSY),
    "outage": repeat(ConnectionError("the database is away")),
}


def main(folder: str, script: str) -> None:
    """Supervise until the end, and say how it went."""
    logging.basicConfig(stream=sys.stdout, format="%(message)s", level=logging.INFO)
    state, clock = State(folder), SystemClock()
    stop = Stop(state)
    desk = Desk(
        app="orders",
        stop=stop,
        clock=clock,
        tell=lambda _: None,
        started=lambda _: None,
        committed=lambda *_: None,
        breach=lambda _: None,
        careful=lambda _: True,
        flows=dict,
    )
    acts = SCRIPTS[script]
    queries: list[FakeQuery] = []

    def build() -> FakeQuery:
        # Spark's own handler, which a session that is made here installs.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        queries.append(FakeQuery(acts=acts))
        return queries[-1]

    restarts = Restarts(state, "build", Limit(max_restarts=0), clock)
    run = Run(build, "build", restarts, desk)  # type: ignore[arg-type]
    Supervisor([run], stop, clock, grace=3600).run()
    Path(folder, "result").write_text(f"stops={queries[-1].stops} cut={queries[-1].cut_off}")


if __name__ == "__main__":
    main(*sys.argv[1:])
