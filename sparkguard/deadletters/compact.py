"""Compact: the many files of a file sink made few, second copies of a letter left out.

A folder's letters are written to new files first, and only then are the old ones deleted. Killed in
between, both are there: each letter is still read once, and the next compaction ends the work.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import closing
from dataclasses import dataclass
from uuid import uuid4

from sparkguard import filesystem
from sparkguard.deadletters.files import Skipped
from sparkguard.deadletters.table import COPIES, Table, selected
from sparkguard.deadletters.topic import Bounds
from sparkguard.errors import LettersError
from sparkguard.sinks.file import FileSink


@dataclass(frozen=True, slots=True, kw_only=True)
class Compacted:
    """What a compaction did.

    Attributes:
        letters: that were written anew.
        copies: second copies that were left out.
        before, after: files of letters.
        skipped: files that cannot be read; they stay as they are.
    """

    letters: int
    copies: int
    before: int
    after: int
    skipped: tuple[Skipped, ...]


def compact(sink: FileSink) -> Compacted:
    """Join the letter files of each folder below a file sink's path.

    Every file is read whole before one is touched. Letters written meanwhile are left for the next
    time. The temporary folder must have room for the largest folder.

    Raises:
        LettersError: the letters cannot be read or written; none is lost.
    """
    with closing(Table({"files": sink}, Bounds(), ())) as table:
        table.drop_corrupt("")
        files = table.files["files"]
        folders = defaultdict(list)
        for path in files.paths:
            folders[path.rpartition("/")[0]].append(path)
        before, letters, made = len(files.paths), 0, 0
        copies = table.copies
        doubled = {name for (name,) in table.rows(f"select distinct _file from {COPIES}")}
        for folder, paths in folders.items():
            known = [files.paths[path] for path in paths]
            if len(paths) == 1 and known[0] not in doubled:
                made += 1
                continue
            file = table.new_file()
            count = table.copy(
                f"select * exclude (_file, _row) from ({selected(known, union=files.schemas > 1)}) "
                f"anti join {COPIES} using (_file, _row)",
                file,
            )
            # A file that went meanwhile is another compaction's doing.
            if table.files["files"] is not files or not {*paths} <= files.paths.keys():
                raise LettersError(f"The letters in {folder} changed; run it again.")
            if count:
                with file.open("rb") as source:
                    name = f"{folder}/compacted-{uuid4().hex}.parquet"
                    filesystem.upload(files.fs, name, source)
            file.unlink(missing_ok=True)
            for path in paths:
                filesystem.delete(files.fs, path)
            letters, made = letters + count, made + bool(count)
        return Compacted(
            letters=letters,
            copies=copies,
            before=before,
            after=made,
            skipped=tuple(table.skipped),
        )
