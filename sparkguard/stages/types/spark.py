"""Shape -> pyspark's types. Importing ``pyspark.sql.types`` starts no JVM."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkguard.core.shape import Kind, Shape, columns_of, inside

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType


def spark_type(shape: Shape) -> StructType:
    """The schema of rows of this shape; a shape that is no struct is one column ``value``."""
    from pyspark.sql.types import StructField, StructType

    return StructType(
        [
            StructField(column.name, _data_type(column.shape), column.shape.nullable)
            for column in columns_of(shape)
        ]
    )


def _data_type(shape: Shape) -> DataType:
    from pyspark.sql import types

    match shape.kind:
        case Kind.ARRAY:
            element = inside(shape.element)
            return types.ArrayType(_data_type(element), element.nullable)
        case Kind.MAP:
            element = inside(shape.element)
            return types.MapType(
                _data_type(inside(shape.key)), _data_type(element), element.nullable
            )
        case Kind.STRUCT:
            return types.StructType(
                [
                    types.StructField(field.name, _data_type(field.shape), field.shape.nullable)
                    for field in shape.fields
                ]
            )
        case Kind.DECIMAL:
            return types.DecimalType(shape.precision, shape.scale)
        case _:
            return _scalars()[shape.kind]


def _scalars() -> dict[Kind, DataType]:
    from pyspark.sql import types

    return {
        Kind.BOOLEAN: types.BooleanType(),
        Kind.BYTE: types.ByteType(),
        Kind.SHORT: types.ShortType(),
        Kind.INT: types.IntegerType(),
        Kind.LONG: types.LongType(),
        Kind.FLOAT: types.FloatType(),
        Kind.DOUBLE: types.DoubleType(),
        Kind.STRING: types.StringType(),
        Kind.BINARY: types.BinaryType(),
        Kind.DATE: types.DateType(),
        Kind.TIMESTAMP: types.TimestampType(),
        Kind.TIMESTAMP_NTZ: types.TimestampNTZType(),
        Kind.DURATION: types.DayTimeIntervalType(),
    }
