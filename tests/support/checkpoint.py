"""Spark's checkpoint of a query, written by hand."""

from __future__ import annotations

import json
from pathlib import Path

QUERY = "6fbec91a-bf63-4c44-9e0b-0fd5700f7fd9"
METADATA = '{"batchWatermarkMs":0,"batchTimestampMs":1795252150439,"conf":{}}'


class Written:
    """A checkpoint as Spark writes it."""

    def __init__(self, folder: Path, query_id: str = QUERY) -> None:
        self.folder = folder
        (folder / "commits").mkdir(parents=True)
        (folder / "offsets").mkdir()
        (folder / "metadata").write_text(json.dumps({"id": query_id}))

    def batch(
        self, number: int, *sources: object, committed: bool = True, version: str = "v1"
    ) -> None:
        """One batch: a line for each source, None where it had nothing yet."""
        lines = ["-" if one is None else json.dumps(one, separators=(",", ":")) for one in sources]
        (self.folder / "offsets" / str(number)).write_text("\n".join([version, METADATA, *lines]))
        (self.folder / "offsets" / f".{number}.crc").write_bytes(b"crc")
        if committed:
            commit = self.folder / "commits" / str(number)
            commit.write_text('v1\n{"nextBatchWatermarkMs":0}')
            commit.with_name(f".{number}.crc").write_bytes(b"crc")

    def source(self, number: int, offsets: object) -> None:
        """Where a Kafka source began; Spark puts a zero byte in front."""
        place = self.folder / "sources" / str(number)
        place.mkdir(parents=True)
        (place / "0").write_bytes(b"\0v1\n" + json.dumps(offsets).encode())
