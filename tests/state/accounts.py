"""Commands of a bank, and what becomes of them if one after the other is answered."""

from __future__ import annotations

import json
import random
from collections import defaultdict, deque
from collections.abc import Iterator
from decimal import Decimal, InvalidOperation
from typing import Any

from tests.support.kafka import Message

REMEMBERED = 100
CATEGORIES = ("food", "books", "rent", "pay")


class Oracle:
    """What becomes of commands if one after the other is answered.

    Attributes:
        fates: the ids of commands, once for each time that one came.
        accounts: cents and version.
        operations: the answers to those that were valid, in order.
    """

    def __init__(self, messages: list[Message] | None = None) -> None:
        self.fates: dict[str, list[str]] = defaultdict(list)
        self.accounts: dict[str, tuple[int, int]] = {}
        self.operations: list[dict[str, Any]] = []
        self._known: dict[str, deque[str]] = defaultdict(lambda: deque(maxlen=REMEMBERED))
        for message in messages or []:
            self.meet(message.value or b"")

    def meet(self, value: bytes) -> None:
        """Deal with one command."""
        try:
            command = json.loads(value)
        except ValueError:
            command = {}
        if command.get("kind") in {"open", "deposit", "withdraw"}:
            self.fates[self._fate(command)].append(command["command_id"])
        else:
            self.fates["unreadable"].append(str(value))

    def _fate(self, command: dict[str, Any]) -> str:
        id_, name, kind = command["command_id"], command["account"], command["kind"]
        known = self._known[name]
        cents, version = self.accounts.get(name, (0, 0))
        if id_ in known:
            return "repeated"
        if command.get("expected_version") not in {None, version}:
            return "conflict"
        try:
            change = round(Decimal(command.get("amount", "0")) * 100)
        except InvalidOperation:
            return "failed"
        known.append(id_)
        opened = name in self.accounts
        if (kind == "open") == opened or (opened and change <= 0):
            return "invalid"
        if kind == "withdraw" and change > cents:
            return "invalid"
        cents, version = cents + (-change if kind == "withdraw" else change), version + 1
        self.accounts[name] = cents, version
        self.operations.append(
            {
                "command_id": id_,
                "account": name,
                "kind": kind,
                "category": command.get("category", ""),
                "cents": change,
                "balance": cents,
                "version": version,
                "reason": None,
            }
        )
        return "valid"

    def answered(self) -> set[str]:
        """The ids of the commands that have an answer, of either kind."""
        return {*self.fates["valid"], *self.fates["invalid"]}

    def totals(self) -> dict[str, tuple[int, int]]:
        """Count and sum by category."""
        made: dict[str, tuple[int, int]] = {}
        for one in self.operations:
            if one["kind"] != "open":
                count, cents = made.get(one["category"], (0, 0))
                change = -one["cents"] if one["kind"] == "withdraw" else one["cents"]
                made[one["category"]] = count + 1, cents + change
        return made


def commands(seed: int, count: int, accounts: int) -> Iterator[tuple[str, bytes]]:
    """Commands of many accounts: some come twice, some at once, some are none."""
    rng, bank, numbers = random.Random(seed), Oracle(), iter(range(10**6))
    names = [f"a{number}" for number in range(accounts)]
    sent: dict[str, deque[bytes]] = defaultdict(lambda: deque(maxlen=20))
    peaceful = set(names)

    def made(name: str, **more: Any) -> tuple[str, bytes]:
        command = {
            "command_id": f"c{next(numbers)}",
            "account": name,
            "kind": rng.choice(["deposit", "deposit", "withdraw"]),
            "amount": f"{rng.randrange(1, 20_000) / 100:.2f}",
            "category": rng.choice(CATEGORIES),
            **more,
        }
        value = json.dumps(command).encode()
        bank.meet(value)
        sent[name].append(value)
        return name, value

    def rivals(name: str, count: int) -> list[tuple[str, bytes]]:
        peaceful.discard(name)
        version = bank.accounts[name][1]
        return [made(name, kind="deposit", expected_version=version) for _ in range(count)]

    yield from (made(name, kind="open", amount="0") for name in names)
    yield from rivals("a7", 3)
    for _ in range(count):
        name = rng.choice(names)
        match rng.randrange(25):
            case 0:
                yield name, b'{"command_id": '
            case 1:
                yield (
                    name,
                    json.dumps({"command_id": f"s{next(numbers)}", "kind": "steal"}).encode(),
                )
            case 2:
                yield made(name, amount="ten")
            case 3:
                yield made(f"nobody{rng.randrange(9)}")
            case 4 | 5:
                again = rng.choice(sent[name])
                bank.meet(again)
                yield name, again
            case 6 | 7 if name in peaceful:
                yield from rivals(name, 2)
            case _:
                yield made(name, expected_version=rng.choice([bank.accounts[name][1], None]))
    # When it comes again, a hundred others came between: its id is forgotten, its version is not.
    late = made("a1", kind="deposit", expected_version=bank.accounts["a1"][1])
    yield late
    yield from (made("a1", kind="deposit") for _ in range(REMEMBERED))
    yield late
