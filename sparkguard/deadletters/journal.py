"""Journal: what redrives have sent, in the app's state.

A redrive is a document ``redrive/<run>.json`` and a folder beside it: the letters that were chosen,
as they were then, until it has ended; and a file for each chunk of them that was acknowledged.
Chunks are sent one after the other, so the name of the last file tells how far it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from secrets import token_hex
from typing import Final, NamedTuple

import msgspec
import pyarrow as pa
from pyarrow import parquet as pq

from sparkguard import filesystem
from sparkguard.deadletters.files import JOURNAL
from sparkguard.deadletters.lock import on_state
from sparkguard.driver.state import State
from sparkguard.errors import LettersError

REDRIVES: Final = "redrive"
"""Folder of the state with all redrives."""

RESOLVED_AT: Final = "resolved"
"""Folder of the state with the marks of letters beside which none can be written."""

JOURNAL_SCHEMA: Final = pa.schema(
    [
        pa.field("run", pa.string(), nullable=False),
        pa.field("id", pa.string(), nullable=False),
        pa.field("row", pa.int64(), nullable=False),
        pa.field("what", pa.string(), nullable=False),
        pa.field("why", pa.string()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("seen", pa.timestamp("us", tz="UTC")),
    ]
)
"""What became of one letter: ``sent`` (and where to), ``through`` a flow (and when it had failed
last), ``parked``, or ``left`` (and why)."""

_LETTERS: Final = "letters.parquet"
_PART: Final = ".part"


class Entry(NamedTuple):
    """A row of the journal, without its run."""

    id: str
    row: int
    what: str
    why: str | None = None
    topic: str | None = None
    partition: int | None = None
    offset: int | None = None
    seen: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One redrive.

    Attributes:
        by, host: who began it, and where.
        began, ended: ISO 8601; `ended` is empty while letters are left to go.
        selection: which letters were meant, in the words of whoever began it.
        topic: where they go; None is to each letter's origin, or through a flow.
        through: ``module:name`` of the flow or function that processes them; empty if none.
        letters: that were chosen to go.
        left_out: how many others were meant, by fate.
        abandoned: it was ended before all had gone.
    """

    id: str
    by: str = ""
    host: str = ""
    began: str = ""
    ended: str = ""
    selection: str = ""
    servers: str = ""
    topic: str | None = None
    through: str = ""
    letters: int = 0
    left_out: dict[str, int] = field(default_factory=dict)
    keep_order: bool = False
    abandoned: bool = False


def new_run_id() -> str:
    """Sorts by time."""
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{token_hex(3)}"


class Journal:
    """The redrives of one state.

    Args:
        state: its path or URI.
    """

    def __init__(self, state: str) -> None:
        self._state = State(state)
        self._fs, self._root = filesystem.resolve(filesystem.join(self._state.path, REDRIVES))

    @on_state
    def runs(self) -> list[Run]:
        """Every redrive, the latest first.

        Raises:
            LettersError: the document of one cannot be understood.
        """
        found = []
        for name in reversed(self._state.names(REDRIVES)):
            try:
                found.append(msgspec.convert(self._state.load(name), Run))
            except msgspec.ValidationError as error:
                told = f"{name}.json in the state tells of no redrive: {error}. Move it away."
                raise LettersError(told) from None
        return found

    def run(self, run_id: str) -> Run:
        """The redrive whose id is or begins with this.

        Raises:
            LettersError: there is none, or more than one.
        """
        runs = self.runs()
        found = [one for one in runs if one.id.startswith(run_id)]
        if len(found) == 1:
            return found[0]
        known = ", ".join(one.id for one in runs[:5]) or "none"
        told = "begins more than one id of a redrive" if found else "is no redrive of this state"
        raise LettersError(f"{run_id!r} {told}. The latest: {known}.")

    @on_state
    def begin(self, run: Run, letters: Path) -> None:
        """Keep the chosen letters, and then that there is such a redrive."""
        self._drop_leavings()
        with letters.open("rb") as source:
            filesystem.upload(self._fs, self._letters(run.id), source)
        self._store(run)

    @on_state
    def end(self, run: Run, *, abandoned: bool = False) -> Run:
        """Note that no more of it will go, and forget the letters; what was sent stays noted."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        ended = replace(run, ended=now, abandoned=abandoned)
        self._store(ended)
        filesystem.delete(self._fs, self._letters(run.id))
        return ended

    @on_state
    def letters(self, run: Run) -> closing[pq.ParquetFile]:
        """The chosen letters, open.

        Raises:
            LettersError: the redrive has ended.
        """
        if run.ended:
            raise LettersError(f"The redrive {run.id} has ended; its letters are not kept.")
        # Otherwise the pages of a whole row group would be held at once.
        file = pq.ParquetFile(
            self._letters(run.id), filesystem=self._fs, pre_buffer=False, buffer_size=1 << 20
        )
        return closing(file)

    def place(self, run: Run) -> str:
        """Path or URI of the chosen letters."""
        return filesystem.join(self._state.path, REDRIVES, run.id, _LETTERS)

    @on_state
    def position(self, run: Run) -> tuple[int, frozenset[int]]:
        """The first row that is in no whole chunk, and the rows behind it that are noted."""
        first, parts = 0, []
        for path in filesystem.list(self._fs, filesystem.join(self._root, run.id)):
            name = path.rpartition("/")[2]
            if not name.endswith(JOURNAL):
                continue
            if name.endswith(_PART + JOURNAL):
                parts.append(path)
            else:
                start, _, count = name.removesuffix(JOURNAL).partition("-")
                first = max(first, int(start) + int(count))
        rows = (
            pq.read_table(one, columns=["row"], filesystem=self._fs)["row"].to_pylist()
            for one in parts
        )
        return first, frozenset(row for found in rows for row in found if row >= first)

    @on_state
    def append(self, run: Run, first: int, count: int | None, entries: Sequence[Entry]) -> None:
        """Note rows from row `first` on.

        Args:
            count: with these entries so many rows from there on are all noted; None if not all.
        """
        columns = list(zip(*entries, strict=True)) or [()] * len(Entry._fields)
        made = {name: list(column) for name, column in zip(Entry._fields, columns, strict=True)}
        made["run"] = [run.id] * len(entries)
        table = pa.table(
            [pa.array(made[one.name], one.type) for one in JOURNAL_SCHEMA], schema=JOURNAL_SCHEMA
        )
        data = BytesIO()
        pq.write_table(table, data, compression="zstd")
        name = f"{first:012d}-" + (f"{token_hex(4)}{_PART}" if count is None else str(count))
        path = filesystem.join(self._root, run.id, name + JOURNAL)
        filesystem.upload(self._fs, path, data)

    def _letters(self, run_id: str) -> str:
        return filesystem.join(self._root, run_id, _LETTERS)

    def _store(self, run: Run) -> None:
        self._state.store(f"{REDRIVES}/{run.id}", asdict(run))

    def _drop_leavings(self) -> None:
        """Remove the letters of redrives that were killed before they began, or as they ended."""
        going = {self._letters(run.id) for run in self.runs() if not run.ended}
        for path in filesystem.list(self._fs, self._root, recursive=True):
            if path.endswith(f"/{_LETTERS}") and path not in going:
                filesystem.delete(self._fs, path)
