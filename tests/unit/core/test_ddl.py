"""DDL read without Spark."""

import pytest

from sparkguard.core.ddl import parse_ddl, parse_json_type
from sparkguard.core.shape import Kind, Take
from sparkguard.errors import StageError


@pytest.mark.parametrize(
    ("text", "ddl"),
    [
        ("id long", "struct<id:bigint>"),
        ("id LONG, b: String", "struct<id:bigint,b:string>"),
        ("a int NOT NULL COMMENT 'x, y', b int", "struct<a:int,b:int>"),
        ("`odd ``name` int", "struct<odd `name:int>"),
        (
            "p decimal, q decimal(5), r decimal(5,2)",
            "struct<p:decimal(10,0),q:decimal(5,0),r:decimal(5,2)>",
        ),
        ("v varchar(3), c char(2)", "struct<v:string,c:string>"),
        (
            "m map<string, array<struct<a: int not null, b:date>>>",
            "struct<m:map<string,array<struct<a:int,b:date>>>>",
        ),
        ("i interval day to second", "struct<i:interval day to second>"),
        (
            "t timestamp, n timestamp_ntz, l timestamp_ltz",
            "struct<t:timestamp,n:timestamp_ntz,l:timestamp>",
        ),
        ("double", "double"),
        ("array<tinyint>", "array<tinyint>"),
        ("struct<a:int>", "struct<a:int>"),
        ("map string", "struct<map:string>"),
    ],
)
def test_reads(text: str, ddl: str) -> None:
    """Columns and types, as Spark writes and reads them."""
    assert parse_ddl(text).ddl == ddl


def test_nullability() -> None:
    """Columns, elements and map values are nullable unless they say not null."""
    shape = parse_ddl("a int not null, b array<int>, c map<string,int>")
    a, b, c = (field.shape for field in shape.fields)
    assert (a.nullable, b.nullable, c.nullable) == (False, True, True)
    assert b.element
    assert b.element.nullable
    assert c.key
    assert not c.key.nullable
    assert c.element
    assert c.element.nullable
    assert [field.required for field in shape.fields] == [True, False, False]
    assert shape.take is Take.ANY


@pytest.mark.parametrize(
    ("text", "piece"),
    [
        ("", "names no column"),
        ("id", "'id' is no type"),
        ("id lonk", "'lonk' is no type"),
        ("id long,", "ends too early"),
        ("id long b int", "',' is missing before 'b'"),
        ("id long, ID int", "'id' stands there twice"),
        ("array<", "ends too early"),
        ("array<int", "'>' is missing"),
        ("p decimal(39,2)", "38 digits"),
        ("p decimal(5,6)", "38 digits"),
        ("p decimal(x)", "no number"),
        ("a int; b int", "cannot read ';"),
        ("i interval year to month", "interval year to month"),
        ("a variant", "'variant' is no type"),
        ("'a' int", "no column name"),
    ],
)
def test_refuses(text: str, piece: str) -> None:
    """What is no schema is refused with the reason and the text."""
    with pytest.raises(StageError) as caught:
        parse_ddl(text)
    assert piece in str(caught.value)
    assert repr(text) in str(caught.value)


def test_json_types() -> None:
    """A StructType as JSON says the same, its nullability kept."""
    shape = parse_json_type(
        {
            "type": "struct",
            "fields": [
                {"name": "a", "type": "long", "nullable": False, "metadata": {}},
                {
                    "name": "b",
                    "type": {"type": "array", "elementType": "decimal(5,2)", "containsNull": False},
                    "nullable": True,
                    "metadata": {},
                },
            ],
        }
    )
    assert shape.ddl == "struct<a:bigint,b:array<decimal(5,2)>>"
    assert not shape.fields[0].shape.nullable
    assert shape.fields[1].shape.element
    assert not shape.fields[1].shape.element.nullable
    assert shape.kind is Kind.STRUCT
    with pytest.raises(StageError, match="'udt'"):
        parse_json_type({"type": "udt"})
