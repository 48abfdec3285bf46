"""Outputs: where the records lie that came out, as one local Parquet file of coordinates.

A row tells its coordinates by columns ``topic``, ``partition`` and ``offset``, or by the hidden
column of ``carry=sg.ORIGIN``; a message by headers of these names, or by fields of its JSON value.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import fs as pafs
from pyarrow import parquet as pq

from sparkguard import filesystem
from sparkguard.deadletters.files import Skipped
from sparkguard.deadletters.topic import Bounds, scan
from sparkguard.errors import LettersError
from sparkguard.executor.plan import ORIGIN_COLUMN
from sparkguard.sinks.kafka import KafkaSink

PLACES: Final = pa.schema(
    [("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64())]
)
"""What is put down of each row; nulls where it does not tell its coordinates."""

_LOG: Final = "_spark_metadata"
_LOGGED: Final = re.compile(r"[0-9]+(\.compact)?").fullmatch
_ROWS: Final = 50_000


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputTopic:
    """A topic that a pipeline writes to.

    Attributes:
        config: further settings of librdkafka, security among them.
    """

    bootstrap_servers: str
    topic: str
    config: Mapping[str, str] = field(default_factory=dict)


def spool(outputs: Sequence[str | OutputTopic], file: Path) -> tuple[Skipped, ...]:
    """Put down the coordinates of every row of the outputs; what cannot be read is returned.

    Raises:
        LettersError: there is no such folder, topic or broker, or the folder is a Delta table.
    """
    skipped: list[Skipped] = []
    with pq.ParquetWriter(file, PLACES, compression="zstd") as into:
        for output in outputs:
            if isinstance(output, OutputTopic):
                _spool_topic(output, into)
            else:
                skipped += _spool_files(output, into)
    return tuple(skipped)


# --- files ------------------------------------------------------------------------------------


def _spool_files(path: str, into: Any) -> Iterator[Skipped]:
    fs, root = filesystem.resolve(path)
    shown = filesystem.without_password(path)
    try:
        kind = fs.get_file_info(root).type
        if kind == pafs.FileType.NotFound:
            raise LettersError(f"There is nothing at {shown}.")
        if fs.get_file_info(f"{root}/_delta_log").type == pafs.FileType.Directory:
            raise LettersError(f"{shown} is a Delta table: its files do not tell which rows count.")
        single = kind == pafs.FileType.File
        found = [root] if single else [*filesystem.list(fs, root, recursive=True)]
        written = None if single else _written(fs, root)
    except OSError as error:
        raise LettersError(f"{shown} cannot be listed: {error}.") from error
    names = {one: one.removeprefix(root).split("/") for one in found}
    # Spark hides what is not finished, and so do Hive and DuckDB.
    open_to_all = [one for one in found if single or not _hidden(names[one])]
    files = [one for one in open_to_all if single or one.endswith(".parquet")]
    if written is not None:
        there = {names[one][-1] for one in files}
        for name in sorted(written - there):
            yield Skipped(f"{root}/{name}", "Spark has committed it, and it is not there")
        files = [one for one in files if names[one][-1] in written]
    for one in files:
        try:
            with closing(pq.ParquetFile(one, filesystem=fs)) as parquet:
                for batch in _places(parquet):
                    into.write_table(batch)
        except (OSError, pa.ArrowException) as error:
            yield Skipped(one, str(error).partition("\n")[0].rstrip("."))


def _hidden(parts: Sequence[str]) -> bool:
    return any(part.startswith(("_", ".")) for part in parts)


def _written(fs: pafs.FileSystem, root: str) -> set[str] | None:
    """Names of the files that Spark's file sink has committed; None where it kept no log.

    Each batch has a file of its own in the log, and every tenth sums up those before it.

    Raises:
        LettersError: the log is damaged, so nobody knows what is committed.
    """
    folder = f"{root}/{_LOG}"
    if fs.get_file_info(folder).type == pafs.FileType.NotFound:
        return None
    logged = {path.rpartition("/")[2]: path for path in filesystem.list(fs, folder)}
    numbers = {int(name.removesuffix(".compact")): name for name in logged if _LOGGED(name)}
    summed = max((at for at, name in numbers.items() if name.endswith(".compact")), default=0)
    found: set[str] = set()
    for number in sorted(at for at in numbers if at >= summed):
        file = logged[numbers[number]]
        text = filesystem.read(fs, file) or b""
        try:
            for line in text.decode().splitlines()[1:]:
                entry = json.loads(line)
                name = unquote(entry["path"]).rpartition("/")[2]
                (found.discard if entry.get("action") == "delete" else found.add)(name)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            msg = f"{file} is no log of Spark's file sink: what is committed is not known."
            raise LettersError(msg) from error
    return found


def _places(file: Any) -> Iterator[pa.Table]:
    """The coordinates of a file's rows, or as many nulls."""
    schema = file.schema_arrow
    inside = f"{ORIGIN_COLUMN}." if ORIGIN_COLUMN in schema.names else ""
    known = {one.name for one in (schema.field(ORIGIN_COLUMN).type if inside else schema)}
    if not {*PLACES.names} <= known:
        for rows in _parts(file.metadata.num_rows):
            nulls = [pa.nulls(rows, kind) for kind in PLACES.types]
            yield pa.Table.from_arrays(nulls, schema=PLACES)
        return
    columns = [f"{inside}{name}" for name in PLACES.names]
    for batch in file.iter_batches(batch_size=_ROWS, columns=columns):
        table = pa.Table.from_batches([batch])
        if inside:
            parts = [pc.struct_field(table[ORIGIN_COLUMN], name) for name in PLACES.names]
            table = pa.Table.from_arrays(parts, names=PLACES.names)
        yield table.select(PLACES.names).cast(PLACES)


def _parts(rows: int) -> Iterator[int]:
    for first in range(0, rows, _ROWS):
        yield min(_ROWS, rows - first)


# --- topics -----------------------------------------------------------------------------------


class _Place(msgspec.Struct):
    topic: str | None = None
    partition: int | None = None
    offset: int | None = None


class _Value(_Place):
    hidden: _Place | None = msgspec.field(default=None, name=ORIGIN_COLUMN)


_decode = msgspec.json.Decoder(_Value).decode
_HEADERS: Final = frozenset(PLACES.names)


def _spool_topic(output: OutputTopic, into: Any) -> None:
    sink = KafkaSink(
        bootstrap_servers=output.bootstrap_servers, topic=output.topic, config={**output.config}
    )
    rows: list[tuple[str | None, int | None, int | None]] = []

    def write() -> None:
        columns = [list(column) for column in zip(*rows, strict=True)] or [[], [], []]
        arrays = [pa.array(*one) for one in zip(columns, PLACES.types, strict=True)]
        into.write_table(pa.Table.from_arrays(arrays, schema=PLACES))
        rows.clear()

    def take(message: Any) -> None:
        rows.append(_told(message))
        if len(rows) >= _ROWS:
            write()

    scan(sink, Bounds(), take)
    write()


def _told(message: Any) -> tuple[str | None, int | None, int | None]:
    """The coordinates that a message tells; nulls where it tells none."""
    try:
        headers = {name: value for name, value in message.headers() or () if name in _HEADERS}
        if len(headers) == len(_HEADERS):
            found = {name: value.decode() for name, value in headers.items()}
            return _fitting(found["topic"], int(found["partition"]), int(found["offset"]))
        value = _decode(message.value() or b"")
    except (AttributeError, ValueError, msgspec.MsgspecError):
        return None, None, None
    place = value.hidden or value
    return _fitting(place.topic, place.partition, place.offset)


def _fitting(
    topic: str | None, partition: int | None, offset: int | None
) -> tuple[str | None, int | None, int | None]:
    """The same, where it is whole and could be one of Kafka's."""
    if topic is None or partition is None or offset is None:
        return None, None, None
    fits = 0 <= partition < 2**31 and 0 <= offset < 2**63
    return (topic, partition, offset) if fits else (None, None, None)
