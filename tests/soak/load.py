"""A steady load: records at a rate, each sent until the broker has it."""

from __future__ import annotations

import threading
import time
from typing import Any

from confluent_kafka import Producer


class Load(threading.Thread):
    """Sends the lines in turn, over two partitions.

    Attributes:
        sent: how many lines were handed over; all of them are in the topic after `stop`.
    """

    def __init__(self, servers: str, topic: str, lines: list[bytes], rate: float) -> None:
        super().__init__(daemon=True)
        self._topic = topic
        self._lines = lines
        self._rate = rate
        self._over = threading.Event()
        self._refused: list[Any] = []
        self.sent = 0
        self._producer = Producer(
            {
                "bootstrap.servers": servers,
                "enable.idempotence": True,
                "delivery.timeout.ms": 300_000,
                "log_level": 0,
            }
        )

    def run(self) -> None:
        """Send until it is stopped, or nothing is left."""
        began = time.monotonic()
        while not self._over.wait(0.05) and self.sent < len(self._lines):
            due = min(int((time.monotonic() - began) * self._rate), len(self._lines))
            for number in range(self.sent, due):
                self._send(number)
            self.sent = max(due, self.sent)
            self._producer.poll(0)

    def stop(self) -> int:
        """Stop, and wait until the broker has all; how many they are."""
        self._over.set()
        self.join()
        left = self._producer.flush(120)
        if left or self._refused:
            raise RuntimeError(f"{left} records were not sent; {self._refused[:3]} were refused")
        return self.sent

    def _send(self, number: int) -> None:
        self._producer.produce(
            self._topic,
            self._lines[number],
            b"\xff%d" % number,
            number % 2,
            headers=[("n", b"%d" % number), ("none", None)],
            on_delivery=lambda error, _: self._refused.append(error) if error else None,
        )
