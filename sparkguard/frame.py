"""What a frame offers a flow: which columns hold the record, and which are carried."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from sparkguard.errors import StageError
from sparkguard.events import HEADERS_MISSING, log
from sparkguard.executor.plan import ORIGIN_COLUMN, Layout

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructField


@dataclass(frozen=True, slots=True)
class Carry:
    """What may travel with the rows beside named columns: `ORIGIN` or `RECORD`."""

    name: str
    fields: tuple[str, ...]


ORIGIN: Final = Carry("ORIGIN", ("topic", "partition", "offset", "timestamp", "file"))
"""Carry the record's coordinates, hidden from the user's functions behind the flow."""

RECORD: Final = Carry("RECORD", ("key", "value", "headers", *ORIGIN.fields))
"""Carry the whole record, hidden; every row then moves its bytes once more."""

_FILE = "_sparkguard_file"
_UNREADABLE = re.compile(r"\binterval (year|month)\b")
_KAFKA = {
    "key": ("binary", "string"),
    "value": ("binary", "string"),
    "headers": ("array<struct<key:string,value:binary>>",),
    "topic": ("string",),
    "partition": ("int",),
    "offset": ("bigint",),
    "timestamp": ("timestamp",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Arranged:
    """A frame as the pass reads it.

    Attributes:
        frame: the columns that go to the workers.
        repeated: the fields that the output has behind the flow's own.
    """

    frame: DataFrame
    layout: Layout
    repeated: tuple[StructField, ...]


class Arranger:
    """Looks at one frame for one flow.

    Args:
        reads_value: the first stage reads the column ``value`` as bytes; otherwise it
            reads whole rows.
    """

    def __init__(self, frame: DataFrame, flow: str, *, reads_value: bool) -> None:
        self._frame = frame
        self._flow = flow
        self._reads_value = reads_value
        self._types = dict(frame.dtypes)
        self._kafka = is_kafka(frame)

    def arrange(self, carry: Sequence[Any]) -> Arranged:
        """The frame with everything in its place.

        Raises:
            StageError: there is no column ``value``, or one that is to be carried; two
                have one name, or Python has no such type.
        """
        if self._reads_value:
            self._check_value()
        self._check_columns()
        if self._kafka and "headers" not in self._types:
            log(
                HEADERS_MISSING,
                level=logging.WARNING,
                flow=self._flow,
                hint="set the option includeHeaders to true",
            )
        columns = {name: self._column(name) for name in self._shown()}
        file = None if self._kafka else _file_path(self._frame)
        if file is not None:
            columns[_FILE] = file.alias(_FILE)
        carried = {name: f"_carried_{name}" for name in self._names(carry)}
        for name, alias in carried.items():
            # A value that is cast for the stages is carried as it was.
            if name in self._cast():
                columns[alias] = quoted(name).alias(alias)
            else:
                carried[name] = name
        selected = self._frame.select(*columns.values())
        places = {name: place for place, name in enumerate(columns)}
        known = {name: places[name] for name in self._known()}
        if file is not None:
            known["file"] = places[_FILE]
        origin = _fields(carry, known)
        layout = Layout(
            **known,
            others=tuple((n, places[n]) for n in self._others()),
            carried=tuple((name, places[alias]) for name, alias in carried.items()),
            origin=origin,
            rows=len(self._shown()),
        )
        repeated = [self._frame.schema[name] for name in carried]
        if origin:
            repeated.append(_hidden(selected, origin))
        return Arranged(frame=selected, layout=layout, repeated=tuple(repeated))

    def _shown(self) -> list[str]:
        dropped = {"timestampType"} if self._kafka and self._reads_value else set()
        return [name for name in self._frame.columns if name not in dropped]

    def _known(self) -> list[str]:
        wanted: Iterable[str] = _KAFKA if self._kafka else ("value",) if self._reads_value else ()
        return [name for name in wanted if self._types.get(name) in _KAFKA[name]]

    def _others(self) -> list[str]:
        return [] if self._kafka else [name for name in self._shown() if name not in self._known()]

    def _cast(self) -> list[str]:
        if not self._reads_value:
            return []
        return [name for name in ("key", "value") if self._types.get(name) == "string"]

    def _column(self, name: str) -> Column:
        column = quoted(name)
        cast = name in self._cast() and name in self._known()
        return column.cast("binary").alias(name) if cast else column

    def _names(self, carry: Sequence[Any]) -> list[str]:
        names = [one for one in carry if not isinstance(one, Carry)]
        for name in names:
            if name not in self._types:
                have = ", ".join(self._types)
                raise StageError(
                    f"Flow {self._flow!r} is to carry {name!r}, which the frame has not; "
                    f"it has: {have}."
                )
        return names

    def _check_columns(self) -> None:
        apart = self._frame.sparkSession.conf.get("spark.sql.caseSensitive") == "true"
        shown = self._shown()
        names = [name if apart else name.lower() for name in shown]
        for name, known in zip(shown, names, strict=True):
            if names.count(known) > 1:
                raise StageError(
                    f"Flow {self._flow!r} reads a frame with several columns named {name!r}; "
                    "rename them, or select one."
                )
            if _UNREADABLE.search(self._types[name]):
                raise StageError(
                    f"Flow {self._flow!r} reads the column {name!r} of type {self._types[name]}, "
                    "which Spark cannot hand to Python; cast it to string, or leave it out."
                )

    def _check_value(self) -> None:
        kind = self._types.get("value")
        if kind in _KAFKA["value"]:
            return
        if kind is None:
            have = ", ".join(self._types) or "none"
            raise StageError(
                f"Flow {self._flow!r} begins with deserialize, which reads a column 'value', and "
                f"the frame has none; it has: {have}. Rename the column, or begin with a map."
            )
        raise StageError(
            f"Flow {self._flow!r} begins with deserialize, which reads bytes or text, and the "
            f"frame's column 'value' is {kind}."
        )


def is_kafka(frame: DataFrame) -> bool:
    """Whether the frame has the columns of Spark's Kafka source."""
    types, needed = dict(frame.dtypes), ("value", "topic", "partition", "offset")
    return all(types.get(name) in _KAFKA[name] for name in needed)


def source_topics(frame: DataFrame) -> frozenset[str]:
    """The Kafka topics that the frame's plan reads by name, where the plan shows them."""
    topics: set[str] = set()
    for leaf in _leaves(frame):
        found = re.search(r"Subscribe\[([^\]]*)\]", leaf.toString())
        topics.update(_split(found[1] if found else None))
        topics.update(_split(_option(leaf, "subscribe")))
    return frozenset(topics)


def is_raw(frame: DataFrame) -> bool:
    """Whether no row of the frame was made by Python, as another flow does."""
    plan = getattr(frame, "_jdf", None)
    nodes = [] if plan is None else [plan.queryExecution().analyzed()]
    for node in nodes:
        if "MapIn" in node.nodeName():
            return False
        children = node.children()
        nodes += [children.apply(place) for place in range(children.size())]
    return True


def source_servers(frame: DataFrame) -> frozenset[str]:
    """The Kafka servers that the frame's streams read from, one text a stream."""
    found = {_option(leaf, "kafka.bootstrap.servers") for leaf in _leaves(frame)}
    return frozenset(servers for servers in found if servers)


def _leaves(frame: DataFrame) -> list[Any]:
    plan = getattr(frame, "_jdf", None)
    if plan is None:
        return []
    leaves = plan.queryExecution().analyzed().collectLeaves()
    return [leaves.apply(place) for place in range(leaves.size())]


def _option(leaf: Any, name: str) -> str | None:
    """An option of a stream's source; None where the leaf is none."""
    if leaf.getClass().getSimpleName() != "StreamingRelationV2":
        return None
    value: str | None = leaf.extraOptions().get(name)
    return value


def _split(names: str | None) -> set[str]:
    return {name.strip() for name in names.split(",")} if names else set()


def quoted(name: str) -> Column:
    """The column of exactly this name, whatever characters it has."""
    from pyspark.sql import functions as f

    return f.col("`" + name.replace("`", "``") + "`")


def _file_path(frame: DataFrame) -> Column | None:
    """The path of a file source's row; None where the frame is read from none."""
    from pyspark.errors import AnalysisException
    from pyspark.sql import functions as f

    plan = getattr(frame, "_jdf", None)
    if plan is None or not _shows_file_path(plan.queryExecution().analyzed()):
        return None
    column = f.col("_metadata.file_path")
    try:
        _ = frame.select(column).schema
    except AnalysisException:
        return None
    return column


def _shows_file_path(plan: Any) -> bool:
    """Whether to try at all: PySpark logs every refusal as an error, with a stack trace."""
    hidden = plan.metadataOutput()
    columns = [hidden.apply(place) for place in range(hidden.size())]
    types = [one.dataType().catalogString() for one in columns if one.name() == "_metadata"]
    # A row of a join comes from two files, and neither is its own.
    if len(types) != 1 or "file_path" not in types[0]:
        return False
    while plan.children().size() == 1:
        # What Python has made of rows, like another flow, lies in no file any more.
        if "MapIn" in plan.nodeName():
            return False
        plan = plan.children().apply(0)
    return True


def _fields(carry: Sequence[Any], known: dict[str, int]) -> tuple[tuple[str, int], ...]:
    hidden = [one for one in carry if isinstance(one, Carry)]
    wanted = RECORD.fields if RECORD in hidden else ORIGIN.fields if hidden else ()
    return tuple((name, known[name]) for name in wanted if name in known)


def _hidden(selected: DataFrame, origin: Sequence[tuple[str, int]]) -> StructField:
    from pyspark.sql.types import StructField, StructType

    kinds = selected.schema.fields
    fields = [StructField(name, kinds[place].dataType) for name, place in origin]
    return StructField(ORIGIN_COLUMN, StructType(fields))
