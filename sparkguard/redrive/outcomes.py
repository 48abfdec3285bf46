"""Outcomes: what became of the letters that were sent back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

import pyarrow as pa
from pyarrow import parquet as pq

from sparkguard.deadletters.selection import Selection, quoted
from sparkguard.deadletters.store import Store
from sparkguard.deadletters.table import REDRIVEN, THROUGH_AGAIN
from sparkguard.driver.checkpoint import Offsets
from sparkguard.errors import LettersError

OUTCOMES: Final = (
    "resolved",
    "failed_again",
    "put_off",
    "waiting",
    "through",
    "parked",
    "left",
)
"""``resolved``: behind its new place the query has committed, and no letter has that place.
``put_off``: only one has that waits in a retry topic; where its record is next, nobody follows."""

_PLACES: Final = pa.schema(
    [("topic", pa.string()), ("partition", pa.int32()), ("reached", pa.int64())]
)


class Outcomes:
    """What became of redriven letters, by the letters of a store and a query's checkpoint.

    Args:
        store: over every sink that the query's letters go to, retry topics too, with the app's
            state.
        reached: for each partition the offset behind the last committed record. Without it
            nothing counts as resolved.
    """

    def __init__(self, store: Store, reached: Offsets | None = None) -> None:
        self._store = store
        rows = [(topic, int(at), offset) for (topic, at), offset in (reached or {}).items()]
        columns = list(zip(*rows, strict=True)) or [(), (), ()]
        arrays = [pa.array(column, one.type) for column, one in zip(columns, _PLACES, strict=True)]
        file = store.table.new_file()
        pq.write_table(pa.table(arrays, schema=_PLACES), file)
        self._reached = f"read_parquet({quoted(str(file))})"

    def counts(self, runs: Iterable[str]) -> dict[str, Counter[str]]:
        """For each redrive how many letters had each of `OUTCOMES`."""
        found: dict[str, Counter[str]] = {run: Counter() for run in runs}
        query = f"select run, outcome, count(*) from ({self._each(found)}) group by all"
        for run, outcome, count in self._store.table.rows(query):
            found[run][outcome] += count
        return found

    def resolve(self, run: str, by: str) -> int:
        """Mark the letters of a redrive that are resolved, and say how many were not yet.

        Raises:
            LettersError: some letters could not be read: what failed again may be among them.
        """
        table = self._store.table
        file = table.new_file()
        done = f"select id from ({self._each([run])}) where outcome in ('resolved', 'through')"
        table.copy(done, file)
        # Only now is known what could not be read.
        if left := [one.place for one in self._store.skipped]:
            raise LettersError(
                f"Nothing was marked: not all letters can be read ({', '.join(left[:3])}), and one "
                "of them may say that a record failed again. Mend that or move it away."
            )
        given = Selection(where=f"id in (select id from read_parquet({quoted(str(file))}))")
        return self._store.resolve(given, f"redriven by {run}", by)

    def _each(self, runs: Iterable[str]) -> str:
        """A query for run, id and outcome."""
        named = ", ".join(map(quoted, runs)) or "''"
        return f"""
            select sent.run, sent.id, case
                when again.id is not null then 'failed_again'
                when what <> 'sent' then what
                when failed.put_off then 'put_off'
                when failed.topic is not null then 'failed_again'
                when sent."offset" < reached then 'resolved'
                else 'waiting' end as outcome
            from (select * from {REDRIVEN} where run in ({named})) as sent
            left join {self._reached} as query
                on query.topic = sent.topic and query.partition = sent.partition
            left join ({THROUGH_AGAIN}) as again on again.run = sent.run and again.id = sent.id
            left join (
                select topic, partition, "offset", bool_and(due is not null) as put_off
                from letters group by all
            ) as failed
                on failed.topic = sent.topic and failed.partition = sent.partition
                and failed."offset" = sent."offset"
        """
