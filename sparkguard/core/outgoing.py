"""What goes out: how the rows of a frame become messages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Where one part of a message comes from, and how it is written; the first that is set.

    Attributes:
        constant: the same for every row.
        function: of the row, a dict by column name; gives bytes, text or None.
        column: a column's value.
        format: writes the column's value, or without one the whole row; None takes bytes and text
            as they are, and writes whole numbers in decimal digits.
    """

    constant: bytes | None = None
    function: Callable[[dict[str, Any]], Any] | None = None
    column: str | None = None
    format: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """A message, part by part.

    Attributes:
        topic: a constant is the topic's name as UTF-8.
        headers: by name, or the column that holds them as Spark's Kafka source has them.
        partition: a column of whole numbers; None, or a null in it, leaves it to the key.
    """

    topic: Part
    value: Part
    key: Part | None = None
    headers: tuple[tuple[str, Part], ...] | str = ()
    partition: str | None = None

    def parts(self) -> list[Part]:
        """All of its parts but the partition and a column of headers."""
        named = [] if isinstance(self.headers, str) else [part for _, part in self.headers]
        return [self.topic, self.value, *([self.key] if self.key else []), *named]

    def columns(self) -> list[str]:
        """The columns that it names."""
        named = [part.column for part in self.parts()]
        named += [self.partition, self.headers if isinstance(self.headers, str) else None]
        return [name for name in named if name is not None]

    @property
    def fixed_topic(self) -> str | None:
        """The topic of every row; None where rows name their own."""
        constant = self.topic.constant
        return None if constant is None else constant.decode()
