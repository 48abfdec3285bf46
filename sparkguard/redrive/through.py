"""Through: letters that no topic can take, through a flow or a function of the user's again.

Their records become a DataFrame in the shape in which they came in. It is read by Spark from where
the redrive keeps its letters, so nothing gathers on the driver.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from sparkguard.errors import LettersError
from sparkguard.flow import Flow

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_KAFKA: Final = ("key", "value", "headers", "topic", "partition", "offset", "timestamp")
_KIND: Final = (
    "case when payload = 'row' then 'row' when topic is not null then 'kafka' else 'file' end"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Through:
    """What processes letters again.

    Attributes:
        name: ``module:name`` of a function that takes a DataFrame, or of a flow.
        function: what that is.
        output: where a flow's result is appended, as Parquet; a function writes itself.
        schema: of the columns that letters keep as JSON, as DDL: ``id int, at timestamp``.
    """

    name: str
    function: Any
    output: str = ""
    schema: str = ""

    @classmethod
    def named(cls, name: str, output: str = "", schema: str = "") -> Through:
        """Import what is named.

        Raises:
            LettersError: it is not there, or a flow has no output.
        """
        module, _, attribute = name.partition(":")
        try:
            function = getattr(importlib.import_module(module), attribute)
        # Importing runs the user's code, which may raise anything.
        except (Exception, SystemExit) as error:
            told = f"{name!r} cannot be imported: {type(error).__name__}: {error}."
            raise LettersError(told) from error
        if isinstance(function, Flow) != bool(output):
            problem = "is a flow: say --output, where its result is appended"
            if output:
                problem = "is no flow: it writes what it makes itself, without --output"
            raise LettersError(f"{name!r} {problem}.")
        return cls(name=name, function=function, output=output, schema=schema)

    def process(self, path: str) -> None:
        """Process the letters in a file; returns when all that is written.

        Raises:
            LettersError: they are of several shapes, or the function failed.
        """
        from pyspark.sql import SparkSession

        try:
            frame = self._frame(SparkSession.builder.getOrCreate(), path)
            if isinstance(self.function, Flow):
                frame.transform(self.function).write.mode("append").parquet(self.output)
            else:
                self.function(frame)
        except LettersError:
            raise
        # The user's function and types, and Spark in them, may raise anything.
        except Exception as error:
            said = (str(error).strip().splitlines() or [""])[0]
            told = f"{self.name!r} failed, and nothing is noted: {type(error).__name__}: {said}"
            raise LettersError(told) from error

    def _frame(self, spark: SparkSession, path: str) -> DataFrame:
        letters = spark.read.parquet(path)
        kinds = sorted(row[0] for row in letters.selectExpr(_KIND).distinct().collect())
        if len(kinds) > 1:
            raise LettersError(
                f"The letters are of several shapes ({', '.join(kinds)}), and a function takes "
                "one. Select them: --where \"payload = 'row'\", or by stage."
            )
        if kinds == ["kafka"]:
            frame = letters.select(*_KAFKA)
        else:
            frame = self._rows(letters, is_row=kinds == ["row"])
        # A union is no file's rows, so a letter that fails again names none of ours.
        return frame.union(spark.createDataFrame([], frame.schema))

    def _rows(self, letters: DataFrame, *, is_row: bool) -> DataFrame:
        from pyspark.sql import functions as f

        told = f.col("value").cast("string") if is_row else f.col("columns")
        given = letters.where(told.isNotNull()).limit(1).count()
        if not given:
            return letters.select("value")
        if not self.schema:
            raise LettersError(
                "The letters keep columns as JSON, which does not tell their types. Say them: "
                '--schema "id int, at timestamp".'
            )
        parsed = f.from_json(told, self.schema, {"mode": "FAILFAST"}).alias("read")
        if is_row or not letters.where("value is not null").limit(1).count():
            return letters.select(parsed).select("read.*")
        return letters.select("value", parsed).select("value", "read.*")
