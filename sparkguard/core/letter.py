"""A letter: a record and its failure at rest."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Any

from sparkguard.core.failure import Failure
from sparkguard.core.record import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """A record and its failure, with the id that makes a stored letter count once.

    Attributes:
        id: 32 hexadecimal digits, equal for every delivery of the same letter.
        replays: how often the record was sent back already.
        version: of sparkguard, which wrote the letter.
        overflow: where the whole letter lies when this one is a pointer to it.
    """

    id: str
    failure: Failure
    replays: int = 0
    version: str = ""
    overflow: str | None = None

    @property
    def record(self) -> Record:
        """The record as it came in."""
        return self.failure.record

    def without(self, *facts: str) -> Letter:
        """The same letter with the named text facts of its failure emptied."""
        empty: dict[str, Any] = dict.fromkeys(facts, "")
        return replace(self, failure=replace(self.failure, **empty))


def letter_id(failure: Failure, occurrence: int = 0) -> str:
    """The id of the letter for `failure`.

    Args:
        occurrence: for records without coordinates and for rows, how many equal ones
            failed before in this task. Equal ones in other tasks get equal ids: the
            limit of ids by content.
    """
    record = failure.record
    texts: list[str | None] = [failure.app, failure.flow, failure.stage, failure.path]
    contents: list[bytes | None] = [record.value]
    if record.offset is not None:
        texts.append(f"{record.topic}\0{record.partition}\0{record.offset}")
        if occurrence:
            contents.append(str(occurrence).encode())
    else:
        texts += (record.file, record.columns, str(occurrence))
        contents.insert(0, record.key)
    spelled = [_spelled(None if text is None else _utf8(text)) for text in texts]
    spelled += map(_spelled, contents)
    return hashlib.blake2b(b"".join(spelled), digest_size=16).hexdigest()


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _spelled(part: bytes | None) -> bytes:
    """With its length in front, so that no two lists of parts are spelled alike."""
    return b"\xff" if part is None else b"\0" + len(part).to_bytes(8, "big") + part
