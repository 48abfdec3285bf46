"""Fates: what a redrive would do with each selected letter, and in which order; told in SQL."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from sparkguard.core.failure import Category, Cause
from sparkguard.core.replay import ORIGIN_OFFSET, ORIGIN_PARTITION, ORIGIN_TOPIC, REPLAYS
from sparkguard.deadletters.selection import Selection, quoted
from sparkguard.deadletters.store import Store
from sparkguard.deadletters.table import REDRIVEN, THROUGH_AGAIN


class Way(StrEnum):
    """How letters go."""

    TOPIC = "topic"
    ORIGIN = "origin"
    """Each to the topic where it first came in."""
    FLOW = "flow"
    """As rows, through a flow or a function."""


class Fate(StrEnum):
    """What becomes of a letter."""

    SEND = "send"
    PARK = "park"
    """It was sent back as often as is allowed, and goes to the parking lot."""
    WORN_OUT = "worn_out"
    """Likewise, and there is no parking lot: it stays."""
    ALREADY = "already"
    """An earlier redrive has sent or parked it, or it went through a flow and failed no more."""
    POINTER = "pointer"
    """The whole letter is in none of the sinks that were read."""
    ROW = "row"
    """It is no record of Kafka's: it can only go through the flow again."""
    NEWER = "newer"
    """A later version wrote it, and means something by it that is not known here."""


GOING: Final = (Fate.SEND, Fate.PARK)
CANNOT: Final = (Fate.POINTER, Fate.ROW, Fate.NEWER)
"""They were meant, and cannot go."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What is done with which letters.

    Attributes:
        max_replays: how often one record is sent back.
        parking_lot: name of the sink for letters that were; None leaves them where they are.
        again: letters that an earlier redrive has sent, too.
        keep_order: letters of one key in their original order, each acknowledged before the next.
        rate: so many letters a second at most; None is as fast as it goes.
    """

    max_replays: int = 3
    parking_lot: str | None = None
    again: bool = False
    keep_order: bool = False
    rate: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """How many letters of one stage and exception have one fate."""

    stage: str
    exception: str
    fate: Fate
    count: int


def _mark(name: str) -> str:
    """The text of the first header of that name; bytes that are no text do no harm."""
    found = f"list_filter(headers, lambda header: header.key = {quoted(name)})"
    return f"cast({found}[1].value as varchar)"


_REPLAYS: Final = f"greatest(coalesce(replays, 0), coalesce(try_cast({_mark(REPLAYS)} as int8), 0))"
_KNOWN: Final = " and ".join(
    f"coalesce({column} in ({', '.join(map(quoted, values))}), {missing})"
    for column, values, missing in (
        ("category", Category, "false"),
        ("cause", Cause, "false"),
        ("payload", ("record", "row"), "true"),
    )
)
# What has nothing but key, value and headers is told by those, whatever it was read from.
_ROW: Final = "payload = 'row' or (topic is null and (columns is not null or file is not null))"
_ORIGIN: Final = f"coalesce({_mark(ORIGIN_TOPIC)}, topic)"
_SIZE: Final = "coalesce(octet_length(key), 0) + coalesce(octet_length(value), 0)"
_ORDER: Final = (
    f"{_ORIGIN}, coalesce(try_cast({_mark(ORIGIN_PARTITION)} as int8), partition), "
    f'coalesce(try_cast({_mark(ORIGIN_OFFSET)} as int8), "offset"), "timestamp", seen, id'
)


def _fated(selection: Selection, rules: Rules, way: Way) -> str:
    """A query for the selected letters, each with its ``fate``."""
    row = {Way.TOPIC: _ROW, Way.ORIGIN: f"({_ROW}) or topic is null", Way.FLOW: "false"}[way]
    gone = f"select id from {REDRIVEN} anti join ({THROUGH_AGAIN}) using (run, id)"
    already = "false" if rules.again else f"id in ({gone} where what <> 'left')"
    worn_out = Fate.PARK if rules.parking_lot else Fate.WORN_OUT
    return f"""select *, case
            when not ({_KNOWN}) then {quoted(Fate.NEWER)}
            when overflow is not null then {quoted(Fate.POINTER)}
            when {already} then {quoted(Fate.ALREADY)}
            when {row} then {quoted(Fate.ROW)}
            when {_REPLAYS} >= {rules.max_replays} then {quoted(worn_out)}
            else {quoted(Fate.SEND)} end as fate
        from letters where {selection.condition}"""


def shares(store: Store, selection: Selection, rules: Rules, way: Way) -> list[Share]:
    """The selected letters by stage, exception and fate, the most first."""
    rows = store.table.rows(f"""
        select stage, exception_type, fate, count(*)
        from ({_fated(selection, rules, way)})
        group by all order by 4 desc, 1, 2, 3""")
    return [
        Share(stage=stage or "", exception=kind or "", fate=Fate(fate), count=count)
        for stage, kind, fate, count in rows
    ]


def origins(store: Store, selection: Selection, rules: Rules) -> frozenset[str]:
    """The topics that the letters that would be sent first came from."""
    rows = store.table.rows(f"""
        select distinct {_ORIGIN} from ({_fated(selection, rules, Way.ORIGIN)})
        where fate = {quoted(Fate.SEND)}""")
    return frozenset(topic for (topic,) in rows)


def freeze(store: Store, selection: Selection, rules: Rules, file: Path, *, way: Way) -> int:
    """Write the letters that would go to a file, and say how many.

    In their original order where that is to be kept: sorting takes memory for their payloads.
    The file is one of letters, with the columns ``fate`` and ``size``: of key and value.
    """
    going = ", ".join(map(quoted, GOING))
    order = f" order by {_ORDER}" if rules.keep_order else ""
    return store.table.copy(
        f"select * exclude (sink, place, seen, resolved), {_SIZE} as size "
        f"from ({_fated(selection, rules, way)}) "
        f"where fate in ({going}){order}",
        file,
    )
