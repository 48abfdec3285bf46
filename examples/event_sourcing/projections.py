"""Operations to sums by category, each counted once although the topic may hold it twice.

KAFKA=localhost:9092 python examples/event_sourcing/projections.py

The query that writes `valid-operation` sends a batch again after a crash, so operations come
twice, the second time perhaps thousands of records later. An account's versions have no gaps:
as a sequence they tell every repeat, however late, for one number an account.
"""

from __future__ import annotations

import msgspec
from bank import CATEGORIES, HERE, OUT, VALID, session, stream
from pyspark.sql.streaming.query import StreamingQuery

import sparkguard as sg


class Operation(msgspec.Struct):
    """What is needed of a valid operation."""

    account: str
    version: int
    kind: str
    category: str
    cents: int
    balance: int


class Balance(msgspec.Struct):
    """The first projection: what an account holds."""

    cents: int


class Total(msgspec.Struct):
    """The second one: how many operations a category has, and what came in less what went out."""

    category: str
    count: int = 0
    cents: int = 0


decode = sg.deserialize(sg.Json(Operation), name="decode")


@sg.stateful(key="account", state=Balance, sequence="version", first=1)
def once(_balance: Balance | None, operation: Operation) -> sg.Update[Balance, Operation]:
    """Lets an account's operations pass, each once and in their order."""
    passing = [] if operation.kind == "open" else [operation]  # that has no category
    return sg.Update(state=Balance(operation.balance), emit=passing)


@sg.stateful(key="category", state=Total)
def add(total: Total | None, operation: Operation) -> sg.Update[Total, Total]:
    """Adds one up: in one query with `once`, so nothing comes twice between the two."""
    total = total or Total(operation.category)
    change = -operation.cents if operation.kind == "withdraw" else operation.cents
    total = Total(total.category, total.count + 1, total.cents + change)
    return sg.Update(state=total, emit=[total])


# Whole totals, not changes: of a category's messages the one with the highest count is right.
publish = sg.produce(name="publish", topic=CATEGORIES, key="category", value=sg.Json())


def main() -> None:
    """Runs until every operation that is in the topic now is added up."""
    spark = session()
    guard = sg.Guard.from_yaml(HERE / "projections.yaml")
    flow = guard.flow(decode, name="operations", carry=sg.ORIGIN)
    balances, totals = guard.stateful(once), guard.stateful(add)
    production = guard.produce(publish)

    def build() -> StreamingQuery:
        operations = stream(spark, VALID).transform(flow)
        return (
            production.stream(operations.transform(balances).transform(totals))
            .option("checkpointLocation", str(OUT / "projections" / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )

    guard.run(build)

    passed = guard.ledger.total("once")
    print(
        f"{passed.records_in} operations = {passed.records_out} counted"
        f" + {passed.total('repeated')} repeated"
    )


if __name__ == "__main__":
    main()
