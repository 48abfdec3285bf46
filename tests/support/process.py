"""Child processes that never outlive the test run."""

import os
import signal
import socket
import subprocess
from pathlib import Path
from secrets import SystemRandom

# Below the range from which the system takes ports for outgoing connections: otherwise a client
# that knocks at a stopped server's port can be given that very port, and connect to itself.
PORTS = range(15_000, 32_000)


class Child:
    """A started program, its output in a file.

    A watcher kills it when this process is gone, however it went: a broker left behind by a
    killed test run would hold memory for days.
    """

    def __init__(self, command: list[str], *, log: Path, env: dict[str, str] | None = None) -> None:
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=env,
                # Ctrl-C goes to the test run, which then stops its children in order.
                start_new_session=True,
            )
        self._watcher = subprocess.Popen(
            ["sh", "-c", f"read -r _; kill -9 {self.process.pid} 2>/dev/null"],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    @property
    def running(self) -> bool:
        """Whether the program has not ended yet."""
        ended = self.process.poll() is not None
        if ended:
            self._dismiss_watcher()
        return not ended

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the program itself, not to its children."""
        self.process.send_signal(number)

    def end(self, number: signal.Signals = signal.SIGTERM, *, within: float = 20) -> int:
        """End the program and wait for it; kill it where it does not end in time."""
        self._dismiss_watcher()
        self.process.send_signal(number)
        try:
            return self.process.wait(within)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()

    def _dismiss_watcher(self) -> None:
        self._watcher.kill()
        self._watcher.wait()
        if self._watcher.stdin is not None:
            self._watcher.stdin.close()


def free_port() -> int:
    """A loopback port that nobody listens at."""
    for port in SystemRandom().sample(PORTS, 100):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    message = "No free port was found on loopback."
    raise OSError(message)


def listening(port: int) -> bool:
    """Whether somebody accepts connections at this loopback port."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == os.EX_OK
