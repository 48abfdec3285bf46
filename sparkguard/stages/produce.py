"""``produce``: rows to Kafka, from the workers, each with a delivery report of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sparkguard.core.outgoing import Outgoing, Part
from sparkguard.errors import StageError
from sparkguard.formats.base import Format
from sparkguard.stages.base import Stage

How = str | Format | tuple[str, Format] | Callable[[dict[str, Any]], Any]
"""A column, a format for the whole row, a column and its format, or a function of the row."""

_OURS = {
    "transactional.id": "would need transactions, which records are not sent in",
    "delivery.report.only.error": "would hide the reports that the task waits for",
    "default.topic.config": "is an old place for settings: give them as they are",
}


def produce(  # noqa: PLR0913  # a message has so many parts
    *,
    name: str,
    value: How,
    topic: str | Callable[[dict[str, Any]], str] | None = None,
    topic_column: str | None = None,
    key: How | None = None,
    headers: Mapping[str, How | bytes] | str | None = None,
    partition: str | None = None,
    producer: Mapping[str, Any] | None = None,
) -> Stage[..., Any]:
    """A stage that sends each row of a frame as one message, at least once.

    Each of `value`, `key` and a header is a column's name (bytes and text as they are, whole
    numbers in decimal digits), a format such as ``sg.Json()`` for the whole row, a column with a
    format, as in ``("items", sg.Json())``, or a function of the row as a dict, which gives bytes,
    text or None.

    Args:
        name: the key of its settings, and its name in letters and ledger.
        value: None in it is sent as a tombstone.
        topic: of every row, or a function of the row.
        topic_column: the column that names each row's topic, instead of `topic`.
        key: decides about the partition, as with Java's clients; without one, any.
        headers: by name, bytes for a constant; or one column with all of them, as Spark's
            Kafka source has it.
        partition: a column of whole numbers; rows where it is null go by their key.
        producer: settings of librdkafka, ``bootstrap.servers`` among them; the settings of the
            stage (``producer:``) go over them. ``acks=all`` cannot be changed.

    Raises:
        StageError: neither or both of `topic` and `topic_column`, or a part of no known kind.
    """
    if not name:
        msg = "sg.produce has no name: say name=."
        raise StageError(msg)
    check_producer(name, producer or {})
    outgoing = Outgoing(
        topic=_topic(name, topic, topic_column),
        value=_part(name, "value", value),
        key=None if key is None else _part(name, "key", key),
        headers=_headers(name, headers or {}),
        partition=partition,
    )
    return Stage(name=name, kind="produce", outgoing=outgoing, producer=dict(producer or {}))


def check_producer(name: str, producer: Mapping[str, Any]) -> None:
    """Refuse settings under which records could be lost unnoticed.

    Raises:
        StageError: names the setting.
    """
    for setting, why in _OURS.items():
        if setting in producer:
            raise StageError(f"the producer's {setting!r} {why}.", stage=name)
    for setting in ("acks", "request.required.acks"):
        if str(producer.get(setting, "all")) not in {"all", "-1"}:
            msg = f"the producer's {setting!r} must be 'all': a record counts as sent when every "
            raise StageError(msg + "replica has it.", stage=name)


def _topic(name: str, topic: Any, column: str | None) -> Part:
    if (topic is None) == (column is None):
        msg = "say where its rows go: either topic= (a name or a function) or topic_column=."
        raise StageError(msg, stage=name)
    if column is not None:
        return Part(column=column)
    if isinstance(topic, str):
        return Part(constant=topic.encode())
    if callable(topic):
        return Part(function=topic)
    kind = type(topic).__name__
    raise StageError(f"topic= takes a name or a function of the row, not {kind}.", stage=name)


def _headers(name: str, headers: Any) -> tuple[tuple[str, Part], ...] | str:
    if isinstance(headers, str):
        return headers
    if not isinstance(headers, Mapping):
        kind = type(headers).__name__
        raise StageError(f"headers= takes a mapping by name or a column, not {kind}.", stage=name)
    return tuple(
        (header, Part(constant=how))
        if isinstance(how, bytes)
        else (header, _part(name, f"headers[{header!r}]", how))
        for header, how in headers.items()
    )


def _part(name: str, what: str, how: Any) -> Part:
    if isinstance(how, str):
        return Part(column=how)
    if isinstance(how, tuple):
        if len(how) == 2 and isinstance(how[0], str):  # noqa: PLR2004  # a column and its format
            return Part(column=how[0], format=_writing(name, what, how[1]))
    elif hasattr(how, "decoder") or hasattr(how, "encoder"):
        return Part(format=_writing(name, what, how))
    elif callable(how) and not isinstance(how, Stage | type):
        return Part(function=how)
    raise StageError(
        f"{what} takes a column's name, a format, a column with its format, or a function of the "
        f"row, not {how!r}.",
        stage=name,
    )


def _writing(name: str, what: str, format: Any) -> Any:
    if not callable(getattr(format, "encoder", None)):
        kind = type(format).__name__
        raise StageError(f"{what}: the format {kind} only reads; it cannot write.", stage=name)
    return format
