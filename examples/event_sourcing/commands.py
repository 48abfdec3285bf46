"""Commands to operations: each is checked against its account's state, once, in order.

KAFKA=localhost:9092 python examples/event_sourcing/fill.py
KAFKA=localhost:9092 python examples/event_sourcing/commands.py
KAFKA=localhost:9092 python examples/event_sourcing/projections.py

A command that breaks a rule of the bank is a business outcome: it is answered in the topic
`invalid-operation`. One that raises, or was made for another version of its account, is a
failure: it becomes a dead letter, and is answered nowhere. See refresh.py for conflicts.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any, Literal

import msgspec
from bank import COMMANDS, HERE, INVALID, OUT, VALID, session, stream
from pyspark.sql.streaming.query import StreamingQuery

import sparkguard as sg


class Command(msgspec.Struct):
    """What somebody wants. Without an expected version it holds for whatever the account is."""

    command_id: str
    account: str
    kind: Literal["open", "deposit", "withdraw"]
    amount: str = "0"
    category: str = ""
    expected_version: int | None = None


class Account(msgspec.Struct):
    """What is known of an account; its version is that of the stage: +1 a valid operation."""

    cents: int = 0
    version: int = 0


class Operation(msgspec.Struct):
    """The answer to a command: what was done, or the reason why not."""

    command_id: str
    account: str
    kind: str
    category: str
    cents: int
    balance: int
    version: int
    reason: str | None


decode = sg.deserialize(sg.Json(Command), name="decode")


def refusal(account: Account | None, command: Command, cents: int) -> str | None:
    """The rule of the bank that a command breaks."""
    if command.kind == "open":
        return None if account is None else "the account is open already"
    if account is None:
        return "no such account"
    if cents <= 0:
        return "the amount is not positive"
    if command.kind == "withdraw" and cents > account.cents:
        return "overdraft"
    return None


@sg.stateful(
    key="account",
    state=Account,
    event_id="command_id",
    expected_version="expected_version",
)
def decide(account: Account | None, command: Command) -> sg.Update[Account, Operation]:
    """Does what is asked, or says why not: then the account and its version stay as they are."""
    cents = round(Decimal(command.amount) * 100)  # of an amount that is no number: a failure
    reason = refusal(account, command, cents)
    account = account or Account()
    if reason is not None:
        return sg.Update(state=sg.KEEP, emit=[answer(command, cents, account, reason)])
    change = -cents if command.kind == "withdraw" else cents
    account = Account(account.cents + change, account.version + 1)
    return sg.Update(state=account, emit=[answer(command, cents, account)])


def answer(command: Command, cents: int, account: Account, reason: str | None = None) -> Operation:
    """The operation that answers a command."""
    return Operation(
        command_id=command.command_id,
        account=command.account,
        kind=command.kind,
        category=command.category,
        cents=cents,
        balance=account.cents,
        version=account.version,
        reason=reason,
    )


def topic(row: dict[str, Any]) -> str:
    """Where an answer goes."""
    return VALID if row["reason"] is None else INVALID


# By account, so that its operations stay in order in one partition.
publish = sg.produce(name="publish", topic=topic, key="account", value=sg.Json())


def main() -> None:
    """Runs until every command that is in the topic now is dealt with."""
    spark = session()
    guard = sg.Guard.from_yaml(HERE / "commands.yaml")
    flow = guard.flow(decode, name="commands", carry=sg.ORIGIN)
    accounts, production = guard.stateful(decide), guard.produce(publish)

    def build() -> StreamingQuery:
        operations = stream(spark, COMMANDS).transform(flow).transform(accounts)
        return (
            production.stream(operations)
            .option("checkpointLocation", str(OUT / "commands" / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )

    guard.run(build)

    read, decided = guard.ledger.total("commands"), guard.ledger.total("decide")
    print(
        f"{read.records_in} commands = {decided.records_out} answered"
        f" + {decided.total('repeated')} repeated"
        f" + {read.total('dead_lettered') + decided.total('dead_lettered')} dead-lettered"
    )


if __name__ == "__main__":
    main()
