"""Messages: rows of columns become what Kafka takes, part by part."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cached_property, partial
from typing import Any, Final

import pyarrow as pa

from sparkguard.core.outgoing import Outgoing, Part
from sparkguard.errors import ProduceError
from sparkguard.executor.courier import Outbound
from sparkguard.executor.rows import DictReader, OnlyColumn, read_one

TOPIC: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")
"""A name that a topic may have."""

_READ = DictReader()


class Shown:
    """The columns of a batch that messages are made of."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self.batch = batch

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """Each row as a dict by column name."""
        if len(self.batch) == 1:
            # Says which column it is, where Python cannot hold a value.
            return [read_one(_READ, self.batch, 0)]
        return _READ(self.batch)

    def column(self, name: str) -> pa.RecordBatch:
        """One column alone."""
        return self.batch.select([name])


Write = Callable[[Shown], list[Any]]


class Messages:
    """Makes the messages of one outgoing; made once a task."""

    def __init__(self, outgoing: Outgoing) -> None:
        self._value = _writer(outgoing.value)
        self._key = _writer(outgoing.key or Part())
        self._headers = _headers(outgoing.headers)
        self._partition = outgoing.partition
        self._topic = _writer(outgoing.topic)
        # A topic that does not change was looked at when the query was built.
        self._fixed = outgoing.fixed_topic
        self._known: set[str] = set()

    def over(
        self, batch: pa.RecordBatch
    ) -> tuple[list[Outbound | None], list[tuple[int, BaseException]]]:
        """A message a row, None for the rows that have none, and why they have none."""
        try:
            return list(self._all(Shown(batch))), []
        except BaseException:  # whatever user code raises is a failure (P11)
            return self._by_row(batch)

    def one(self, batch: pa.RecordBatch, row: int) -> Outbound:
        """The message of one row.

        Raises:
            BaseException: what is wrong with it.
        """
        return self._all(Shown(batch.slice(row, 1)))[0]

    def _by_row(
        self, batch: pa.RecordBatch
    ) -> tuple[list[Outbound | None], list[tuple[int, BaseException]]]:
        made: list[Outbound | None] = []
        bad: list[tuple[int, BaseException]] = []
        for row in range(len(batch)):
            try:
                made.append(self.one(batch, row))
            except BaseException as error:  # likewise
                made.append(None)
                bad.append((row, error))
        return made, bad

    def _all(self, shown: Shown) -> list[Outbound]:
        count = len(shown.batch)
        topics = [self._fixed] * count if self._fixed else self._topics(shown)
        columns = (
            topics,
            self._value(shown),
            self._key(shown),
            self._headers(shown),
            [-1] * count if self._partition is None else self._partitions(shown, self._partition),
        )
        return list(zip(*columns, strict=True))

    def _topics(self, shown: Shown) -> list[str]:
        topics = [name.decode() if type(name) is bytes else name for name in self._topic(shown)]
        for name in set(topics) - self._known:
            if name is None or not TOPIC.fullmatch(name):
                said = "The row names no topic" if name is None else f"{name!r} is no topic's name"
                raise ProduceError(f"{said}.", topic=str(name or ""), code="TOPIC_EXCEPTION")
            self._known.add(name)
        return topics

    def _partitions(self, shown: Shown, name: str) -> list[int]:
        given = shown.column(name).column(0).to_pylist()
        for number in given:
            if number is not None and not 0 <= number < 2**31:
                sentence = f"There is no partition {number}."
                raise ProduceError(sentence, topic=self._fixed or "", code="_UNKNOWN_PARTITION")
        return [-1 if number is None else number for number in given]


def _writer(part: Part) -> Write:
    """What gives one part of every message, as bytes or None."""
    if part.function is not None:
        return partial(_by_function, part.function)
    if part.format is not None:
        if part.column is None:
            return _WholeRows(part.format)
        return partial(_by_format, part.format.encoder(), part.column)
    if part.column is not None:
        return partial(_as_it_is, part.column)
    return partial(_constant, part.constant)


def _constant(value: bytes | None, shown: Shown) -> list[Any]:
    return [value] * len(shown.batch)


def _by_function(function: Callable[[dict[str, Any]], Any], shown: Shown) -> list[Any]:
    # A function may change the dict that it gets.
    return [_plain(function(dict(row))) for row in shown.rows]


class _WholeRows:
    """Writes rows with a format, many at once where it can."""

    def __init__(self, format: Any) -> None:
        self._encode: Callable[[Any], bytes] = format.encoder()
        self._made = getattr(format, "rows", lambda _names: None)
        self._many: Callable[[list[list[Any]]], list[bytes]] | None = None

    def __call__(self, shown: Shown) -> list[Any]:
        names = shown.batch.schema.names
        if self._made is not None:
            self._many, self._made = self._made(names), None
        if self._many is None or len(shown.batch) == 1:
            return [_plain(self._encode(row)) for row in shown.rows]
        return self._many([OnlyColumn()(shown.column(name)) for name in names])


def _by_format(encode: Callable[[Any], bytes], column: str, shown: Shown) -> list[Any]:
    values = OnlyColumn()(shown.column(column))
    return [None if value is None else _plain(encode(value)) for value in values]


def _as_it_is(column: str, shown: Shown) -> list[Any]:
    values = shown.column(column).column(0)
    if pa.types.is_integer(values.type):
        values = values.cast(pa.string())
    # The bytes that are there, whether they are UTF-8 or not.
    if pa.types.is_string(values.type):
        values = values.cast(pa.binary())
    elif pa.types.is_large_string(values.type):
        values = values.cast(pa.large_binary())
    given: list[Any] = values.to_pylist()
    return given


def _plain(value: Any) -> bytes | None:
    if isinstance(value, str):
        return value.encode()
    if value is None or type(value) is bytes:
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    msg = f"A part of a message is bytes, text or None, not {type(value).__name__}."
    raise TypeError(msg)


def _headers(headers: tuple[tuple[str, Part], ...] | str) -> Write:
    if isinstance(headers, str):
        return partial(_all_headers, headers)
    if not headers:
        return partial(_constant, None)
    names = [name for name, _ in headers]
    return partial(_named_headers, names, [_writer(part) for _, part in headers])


def _named_headers(names: list[str], writers: list[Write], shown: Shown) -> list[Any]:
    columns = [write(shown) for write in writers]
    return [list(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]


def _all_headers(column: str, shown: Shown) -> list[Any]:
    given = shown.column(column).column(0).to_pylist()
    if any(one["key"] is None for found in given if found for one in found):
        msg = "A header has no name."
        raise ValueError(msg)
    return [found and [(one["key"], one["value"]) for one in found] for found in given]
