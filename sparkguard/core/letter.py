"""A letter: a record and its failure at rest."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache
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
        due: when its record is to come again, in a retry topic.
    """

    id: str
    failure: Failure
    replays: int = 0
    version: str = ""
    overflow: str | None = None
    due: datetime | None = None

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
    rest: list[bytes | None]
    if record.offset is not None:
        rest = [_utf8(f"{record.topic}\0{record.partition}\0{record.offset}"), record.value]
        if occurrence:
            rest.append(str(occurrence).encode())
    else:
        rest = [_utf8(record.file), _utf8(record.columns), str(occurrence).encode()]
        if failure.payload == "row" and failure.batch_id is not None:
            # A batch keeps its number when it is replayed; an equal row of another one is another.
            rest.append(_utf8(f"{failure.query_id}\0{failure.batch_id}"))
        rest += (record.key, record.value)
    if failure.state_key:
        # Two rows of one record may belong to two keys, which fail in different tasks.
        rest.append(_utf8(failure.state_key))
    digest = _begun(failure.app, failure.flow, failure.stage, failure.path).copy()
    digest.update(b"".join(map(_spelled, rest)))
    return digest.hexdigest()


@lru_cache(maxsize=256)
def _begun(*texts: str) -> hashlib.blake2b:
    """The digest of what the letters of one stage share."""
    spelled = b"".join(_spelled(_utf8(text)) for text in texts)
    return hashlib.blake2b(spelled, digest_size=16)


def _utf8(text: str | None) -> bytes | None:
    return None if text is None else text.encode("utf-8", "surrogatepass")


def _spelled(part: bytes | None) -> bytes:
    """With its length in front, so that no two lists of parts are spelled alike."""
    return b"\xff" if part is None else b"\0" + len(part).to_bytes(8, "big") + part
