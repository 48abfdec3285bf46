"""Places: which coordinates came out, lie in a letter, in both or in neither; all of it in DuckDB.

What was read is known as ranges, so no set of offsets is ever in memory: missing ones are the gaps
between those that are there, in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sparkguard.deadletters.selection import quoted
from sparkguard.deadletters.table import STORED, UID, Table
from sparkguard.driver.checkpoint import Range

LISTED: Final = 20
"""More places are counted, not listed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """How many places, and the first of them as text."""

    count: int
    listed: tuple[str, ...]


class Places:
    """The coordinates of outputs and letters.

    Args:
        outputs: a file of `outputs.spool`.
        letters: condition of those stored letters that count.
        ranges: what was read; None where nobody knows.
        fanned: rows of one record are no copies of each other.
    """

    def __init__(
        self,
        table: Table,
        outputs: Path,
        letters: str,
        ranges: Sequence[Range] | None,
        *,
        fanned: bool,
    ) -> None:
        self._table = table
        self._ranges = ranges
        file = table.new_file()
        place = 'topic, "partition", "offset"'
        rows = f"select {'distinct' if fanned else ''} {place}, 'output' as what"
        whole = "topic is not null and \"offset\" is not null and coalesce(path, '') = ''"
        self._outputs = f"read_parquet({quoted(str(outputs))})"
        table.copy(
            f"""{rows} from {self._outputs} where "offset" is not null
            union all by name
            select {place}, 'letter' as what from (
                select distinct {UID} as uid, {place} from {STORED}
                where {letters} and {whole})""",
            file,
        )
        within = "" if ranges is None else f"semi join {self._read} on {_INSIDE}"
        self._places = f"(select * from read_parquet({quoted(str(file))}) as one {within})"

    @property
    def rows(self) -> int:
        """Rows of the outputs, without those of records that are not committed yet."""
        return self._count(f"select count(*) from {self._outputs}") - self._ahead

    @property
    def untold(self) -> int:
        """Rows that do not tell their coordinates."""
        return self._count(f'select count(*) from {self._outputs} where "offset" is null')

    def doubled(self) -> Found:
        """Places at which there is more than one output or letter."""
        twice = f"""select topic, "partition", "offset",
                count(*) filter (what = 'output'), count(*) filter (what = 'letter')
            from {self._places} group by all having count(*) > 1"""
        rows = self._table.rows(f"{twice} order by 1, 2, 3 limit {LISTED}")
        listed = tuple(
            f"{topic}[{partition}]@{offset} ({out} x output, {letters} x letter)"
            for topic, partition, offset, out, letters in rows
        )
        return Found(count=self._count(f"select count(*) from ({twice})"), listed=listed)

    def missing(self, within: Sequence[Range] | None = None) -> Found:
        """Offsets that were read and at which there is neither; all of them, or in some ranges."""
        ranges = self._ranges or () if within is None else within
        read = _table(ranges)
        there = f"""select distinct topic, "partition", "offset" from {self._places} as one
            semi join {read} on {_INSIDE}"""
        size = sum(max(0, one.end - one.start) for one in ranges)
        count = size - self._count(f"select count(*) from ({there})")
        if not count:
            return Found(count=0, listed=())
        rows = self._table.rows(f"""
            select topic, "partition", before + 1, least("offset", stop) - 1 from (
                select *, lag("offset") over (
                    partition by topic, "partition", start order by "offset") as before
                from (
                    select there.*, read.start, read.stop from ({there}) as there
                        asof join {read} on there.topic = read.topic
                        and there."partition" = read."partition" and there."offset" >= read.start
                    union all
                    select topic, "partition", start - 1, start, stop from {read}
                    union all
                    select topic, "partition", stop, start, stop from {read}))
            where "offset" > before + 1 order by 1, 2, 3 limit {LISTED}""")
        return Found(count=count, listed=tuple(_gap(*row) for row in rows))

    def missing_in(self, batches: Sequence[Sequence[Range]]) -> list[int]:
        """The same number for each of some batches, whose ranges do not overlap."""
        numbered = [(one, at) for at, ranges in enumerate(batches) for one in ranges]
        read = _table([one for one, _ in numbered], [at for _, at in numbered])
        rows = self._table.rows(f"""
            select read.number, count(*)
            from (select distinct topic, "partition", "offset" from {self._places}) as there
                asof join {read} on there.topic = read.topic
                and there."partition" = read."partition" and there."offset" >= read.start
            where there."offset" < read.stop group by all""")
        there = dict(rows)
        return [
            sum(max(0, one.end - one.start) for one in ranges) - int(there.get(at, 0))
            for at, ranges in enumerate(batches)
        ]

    @property
    def _ahead(self) -> int:
        if self._ranges is None:
            return 0
        outside = f'{self._outputs} as one anti join {self._read} on {_INSIDE} where "offset" >= 0'
        return self._count(f"select count(*) from {outside}")

    @property
    def _read(self) -> str:
        return _table(self._ranges or ())

    def _count(self, query: str) -> int:
        ((count,),) = self._table.rows(query)
        return int(count)


_INSIDE: Final = (
    'one.topic = read.topic and one."partition" = read."partition" '
    'and one."offset" >= read.start and one."offset" < read.stop'
)


def _table(ranges: Sequence[Range], numbers: Sequence[int] = ()) -> str:
    """The ranges as a table of SQL, each with a number."""
    rows = [
        f"({quoted(one.topic)}, {one.partition}, {one.start}, {one.end}, {number})"
        for one, number in zip(ranges, numbers or [0] * len(ranges), strict=True)
        if one.start < one.end
    ]
    values = ", ".join(rows or ["(null::varchar, 0, 0, 0, 0)"])
    return f'(from (values {values}) as _(topic, "partition", start, stop, number)) as read'


def _gap(topic: str, partition: int, first: int, last: int) -> str:
    behind = "" if first == last else f"..{last}"
    return f"{topic}[{partition}]@{first}{behind}"
