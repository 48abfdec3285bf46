"""The courier of a production: many messages, and word of those alone that were refused."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from sparkguard.sinks._kafka_producer import CHECK_SECONDS, Carrier, Message

Outbound = tuple[str, bytes | None, bytes | None, Any, int]
"""Topic, value, key, headers and partition; -1 is chosen by key."""


class QuietCourier(Carrier):
    """Hears only of what was refused; that the rest arrived, the client's empty queue tells.

    Every message still has its report, but the client itself takes note of the good ones. Tokens
    are numbers: a report that is no container is none of the garbage collector's business, which
    costs a third of `Courier`. For one task at a time in a process.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        name: str,
        judge: Callable[[int, Message, Any, bool], None],
        meanwhile: Callable[[], None],
    ) -> None:
        quiet = {**config, "delivery.report.only.error": True}
        super().__init__(quiet, name, meanwhile)
        self._judge = judge
        told = self._told
        # An int that can be called: one object a message, of which Python keeps no track.
        self._report: Callable[[int], Any] = type(
            "Report", (int,), {"__slots__": (), "__call__": lambda self, *of: told(int(self), *of)}
        )
        self._sent = 0
        self._refused = 0
        self._left = 0

    def send(self, token: int, message: Message, *, alone: bool = False) -> None:
        """Hand a message to the producer; `alone` in no batch with others."""
        to = self._client(alone=alone)
        self.heard = time.monotonic()
        headers = message.headers
        report = self._report(token)
        if alone or headers is not None:
            report = partial(self._told, token, headers=headers, alone=alone)
        try:
            self._produce(to, message, report)
        except to.refusal as error:
            self._refuse(token, message, error.args[0], alone=True)
        self._sent += 1

    def send_all(self, tokens: Iterable[int], messages: Iterable[Outbound]) -> None:
        """Send many, each with its token; half of what sending one by one costs."""
        to = self._client(alone=False)
        produce, sent = to.producer.produce, 0
        self.heard = time.monotonic()
        for report, message in zip(map(self._report, tokens), messages, strict=True):
            topic, value, key, headers, partition = message
            try:
                if headers is None:
                    produce(topic, value, key, partition, report)
                else:
                    # A report does not tell them.
                    told = partial(self._told, int(report), headers=headers)
                    produce(topic, value, key, partition, told, headers=headers)
                sent += 1
            except (BufferError, to.refusal):
                self.send(int(report), Message(*message))
        self._sent += sent

    def poll(self, seconds: float) -> None:
        """As `Carrier.poll`."""
        refused = self._refused
        for one in self._clients.values():
            one.producer.poll(seconds if len(one.producer) else 0)
        left = self._length()
        if left < self._left and refused == self._refused:
            # Something arrived: what was complained about before is over.
            for one in self._clients.values():
                one.troubles.clear()
        if left != self._left:
            self._left, self.heard = left, time.monotonic()

    def ask_for(self, topic: str) -> None:
        """Ask for the topic's partitions anew; the client itself asks every five minutes."""
        for one in (self._client(alone=False), self._client(alone=True)):
            try:
                one.producer.list_topics(topic, CHECK_SECONDS)
            except one.refusal as error:
                # Then what the client knows is what there is.
                one.troubles[:] = [*one.troubles[-4:], error.args[0].str()]

    @property
    def waits(self) -> bool:
        """As `Carrier.waits`."""
        return self._length() > 0

    @property
    def delivered(self) -> int:
        """How many were acknowledged; known once nothing waits."""
        return self._sent - self._refused

    def _length(self) -> int:
        return sum(len(one.producer) for one in self._clients.values())

    def _told(
        self, token: int, error: Any, sent: Any, *, headers: Any = None, alone: bool = False
    ) -> None:
        if error is not None:
            self.heard = time.monotonic()
            # One that was chosen already would be chosen again.
            partition = -1 if sent.partition() is None else sent.partition()
            message = Message(sent.topic(), sent.value(), sent.key(), headers, partition)
            self._refuse(token, message, error, alone=alone)

    def _refuse(self, token: int, message: Message, error: Any, *, alone: bool) -> None:
        self._refused += 1
        self._judge(token, message, error, alone)
