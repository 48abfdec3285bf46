"""A letter: a record and its failure at rest."""

from __future__ import annotations

import hashlib
import struct
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
    digest = hashlib.blake2b(digest_size=16)
    for part in (failure.app, failure.flow, failure.stage, failure.path):
        _add(digest, part.encode("utf-8", "surrogatepass"))
    if record.offset is not None:
        where = f"{record.topic}\0{record.partition}\0{record.offset}"
        _add(digest, where.encode("utf-8", "surrogatepass"))
        _add(digest, record.value)
        if occurrence:
            _add(digest, str(occurrence).encode())
    else:
        for text in (record.file, record.columns, str(occurrence)):
            _add(digest, text.encode("utf-8", "surrogatepass") if text is not None else None)
        _add(digest, record.key)
        _add(digest, record.value)
    return digest.hexdigest()


def _add(digest: hashlib.blake2b, part: bytes | None) -> None:
    digest.update(b"\xff" if part is None else b"\0" + struct.pack(">Q", len(part)) + part)
