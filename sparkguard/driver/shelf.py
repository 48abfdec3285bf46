"""The shelf: where the rows of a batch are set aside while its bad ones are looked for.

They are written once, as Parquet, with a number that stays theirs, and read from there by file
and number: the source is not read again, and the flow does not run again.
"""

from __future__ import annotations

import json
import logging
import re
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, Protocol

from sparkguard.driver.checkpoint import checkpoint_of
from sparkguard.driver.journal import File, Part, Plan
from sparkguard.errors import SparkguardError
from sparkguard.events import ISOLATION_LEFT, log
from sparkguard.filesystem import join

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

ROW_COLUMN: Final = "_sparkguard_row"

_FOLDER = "_sparkguard"
_WRITTEN = {
    # As they are, also in the years before calendars agreed.
    "spark.sql.parquet.int96RebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}
_READ = {
    # A file that is gone or broken is no empty one.
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
    # A path is itself, whatever characters it has.
    "__globPaths__": "false",
}


class Shelf(Protocol):
    """Keeps the rows of a batch."""

    def put(self, batch: DataFrame, batch_id: int) -> Plan:
        """Set the rows aside; what lay here before is removed."""
        ...

    def take(self, batch: DataFrame, plan: Plan, rows: range) -> DataFrame:
        """These rows of a batch that was set aside, in the session of `batch`."""
        ...

    def remove(self, session: SparkSession, plan: Plan) -> None:
        """Remove the rows; never raises."""
        ...


class ParquetShelf:
    """Keeps them in a folder of the query's checkpoint, or of the state where there is none."""

    def __init__(self, stage: str, other: str) -> None:
        self._stage = _file_name(stage)
        self._other = other

    def put(self, batch: DataFrame, batch_id: int) -> Plan:
        """Set the rows aside; what lay here before is removed."""
        from pyspark.sql import functions as f

        if ROW_COLUMN in batch.columns:
            msg = f"The batch has a column {ROW_COLUMN!r}, in which its rows would be numbered."
            raise SparkguardError(msg)
        token = uuid.uuid4().hex
        session = batch.sparkSession
        shelf = join(checkpoint_of(batch) or self._other, _FOLDER, self._stage)
        folder = join(shelf, f"{batch_id}-{token[:8]}")
        _delete(session, shelf)
        numbered = batch.withColumn(ROW_COLUMN, f.monotonically_increasing_id())
        with _set(session, _WRITTEN):
            numbered.write.mode("overwrite").parquet(folder)
        plan = Plan(
            token=token,
            batch_id=batch_id,
            folder=folder,
            schema=numbered.schema.json(),
            files=_files(session, folder),
        )
        # What can be written and not be read must not become a plan.
        self.take(batch, plan, range(plan.rows))
        return plan

    def take(self, batch: DataFrame, plan: Plan, rows: range) -> DataFrame:
        """These rows of a batch that was set aside, in the session of `batch`."""
        from pyspark.sql.types import StructType

        parts = plan.parts(rows)
        paths = [join(plan.folder, part.file.name) for part in parts]
        read = _read(batch.sparkSession, StructType.fromJson(json.loads(plan.schema)), paths)
        return _between(read, parts).drop(ROW_COLUMN)

    def remove(self, session: SparkSession, plan: Plan) -> None:
        """Remove the rows; never raises."""
        try:
            _delete(session, plan.folder)
        except Exception as error:
            # They are in nobody's way, and the next isolation tries again.
            problem = f"{type(error).__name__}: {error}"
            log(ISOLATION_LEFT, level=logging.WARNING, folder=plan.folder, exception=problem[:500])


def _files(session: SparkSession, folder: str) -> tuple[File, ...]:
    """The files of a folder and their rows; of the rows themselves nothing comes here."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import LongType, StructType

    # Without the rows' own columns: one of them may be named `_metadata`.
    numbers = _read(session, StructType().add(ROW_COLUMN, LongType()), [folder])
    row = f.col(ROW_COLUMN)
    found = (
        numbers.groupBy(f.col("_metadata.file_name").alias("name"))
        .agg(f.min(row).alias("first"), f.max(row).alias("last"), f.count(row).alias("rows"))
        .orderBy("first")
        .collect()
    )
    if any(one["last"] - one["first"] + 1 != one["rows"] for one in found):
        msg = f"The rows that were set aside in {folder!r} have numbers with gaps."
        raise SparkguardError(msg)
    return tuple(File(name=one["name"], first=one["first"], rows=one["rows"]) for one in found)


def _between(read: DataFrame, parts: Sequence[Part]) -> DataFrame:
    """Of one file some rows; several files are always read whole."""
    from pyspark.sql import functions as f

    if all(part.all for part in parts):
        return read
    (part,) = parts
    first, last = part.file.first + part.start, part.file.first + part.stop - 1
    return read.where(f.col(ROW_COLUMN).between(first, last))


def _read(session: SparkSession, schema: StructType, paths: list[str]) -> DataFrame:
    return session.read.schema(schema).options(**_READ).parquet(*paths)


@contextmanager
def _set(session: SparkSession, settings: dict[str, str]) -> Iterator[None]:
    """Settings of the session for a moment; a query's batches have a session of their own."""
    before = {name: session.conf.get(name) for name in settings}
    try:
        for name, value in settings.items():
            session.conf.set(name, value)
        yield
    finally:
        for name, known in before.items():
            session.conf.set(name, str(known))


def _delete(session: SparkSession, folder: str) -> None:
    """Remove a folder wherever Spark can write one."""
    context: Any = session.sparkContext
    path = context._jvm.org.apache.hadoop.fs.Path(folder)  # noqa: SLF001  # Spark's own filesystems
    path.getFileSystem(context._jsc.hadoopConfiguration()).delete(path, True)  # noqa: FBT003, SLF001


def _file_name(stage: str) -> str:
    """A name for a folder, another one for each stage."""
    plain = re.sub(r"[^A-Za-z0-9_-]", "_", stage)[:50]
    return f"{plain}-{blake2b(stage.encode(), digest_size=4).hexdigest()}"
