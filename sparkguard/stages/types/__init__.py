"""Python types as Spark's: annotation -> `Shape` -> StructType, and whether two stages fit."""

from sparkguard.stages.types.fit import compatible
from sparkguard.stages.types.read import shape_of
from sparkguard.stages.types.spark import spark_type

__all__ = ["compatible", "shape_of", "spark_type"]
