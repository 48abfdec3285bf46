"""Messages: rows of columns become keys, values, headers, topics and partitions."""

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sparkguard as sg
from sparkguard.core.outgoing import Outgoing, Part
from sparkguard.errors import ProduceError
from sparkguard.executor.messages import Messages
from sparkguard.sinks._kafka_producer import Message

BATCH = pa.RecordBatch.from_pydict(
    {"id": [1, 2, 3], "note": ["a", None, "ü"], "place": [0, None, 7], "raw": [b"\xff", b"", None]}
)
FIXED = Part(constant=b"t")


def over(batch: pa.RecordBatch, **parts: Any) -> tuple[list[Any], list[Any]]:
    """The messages of a batch, and its bad rows with what was wrong."""
    parts_: dict[str, Any] = {"topic": FIXED, "value": Part(column="id"), **parts}
    made, bad = Messages(Outgoing(**parts_)).over(batch)
    return [m and Message(*m) for m in made], [(row, type(error), str(error)) for row, error in bad]


def values(part: Part) -> list[Any]:
    """The values of `BATCH`, written so."""
    made, bad = over(BATCH, value=part)
    assert not bad
    return [message.value for message in made]


def raising(row: dict[str, Any]) -> bytes:
    """Raises for one row, and changes the rows that it gets."""
    if row.pop("id") == 2:
        raise SystemExit(3)
    return b"x"


def test_columns_as_they_are() -> None:
    """Text is UTF-8, bytes are bytes, whole numbers decimal digits, null is None."""
    assert values(Part(column="id")) == [b"1", b"2", b"3"]
    assert values(Part(column="note")) == [b"a", None, "ü".encode()]
    assert values(Part(column="raw")) == [b"\xff", b"", None]


def test_formats() -> None:
    """A format writes a column or the whole row; a null column is None, not the text null."""
    assert values(Part(column="note", format=sg.Json())) == [b'"a"', None, '"ü"'.encode()]
    assert values(Part(column="note", format=sg.Text("latin-1"))) == [b"a", None, b"\xfc"]
    assert values(Part(column="raw", format=sg.Raw())) == [b"\xff", b"", None]
    (first, *_) = values(Part(format=sg.Json()))
    assert first == b'{"id":1,"note":"a","place":0,"raw":"/w=="}'


def test_text_that_is_no_utf8_passes_as_bytes() -> None:
    """What Spark holds is sent: nobody asked for its text."""
    batch = pa.RecordBatch.from_arrays([pa.array([b"\xff\xfe"]).view(pa.string())], ["id"])
    made, bad = over(batch)
    assert [message.value for message in made] == [b"\xff\xfe"]
    assert not bad


def test_a_bad_row_stands_alone() -> None:
    """P6, P11: whatever a function raises is its row's; and it gets a row of its own."""
    made, bad = over(BATCH, key=Part(function=raising), value=Part(format=sg.Json()))
    assert [message and message.key for message in made] == [b"x", None, b"x"]
    assert bad == [(1, SystemExit, "3")]
    assert made[0].value.startswith(b'{"id":1,')


def test_functions_give_bytes_or_text() -> None:
    """Text is sent as UTF-8; anything else is a failure that says so."""
    found = {1: "ü", 2: bytearray(b"x"), 3: 4}
    made, bad = over(BATCH, value=Part(function=lambda row: found[row["id"]]))
    assert [message and message.value for message in made] == ["ü".encode(), b"x", None]
    assert bad == [(2, TypeError, "A part of a message is bytes, text or None, not int.")]


def test_topics_and_partitions() -> None:
    """By column; what cannot be one is the row's failure, without asking the broker."""
    batch = BATCH.append_column("to", pa.array(["a", "b c", None]))
    made, bad = over(batch, topic=Part(column="to"), partition="place")
    assert [message and message[:1] + message[4:5] for message in made] == [("a", 0), None, None]
    assert [(row, kind) for row, kind, _ in bad] == [(1, ProduceError), (2, ProduceError)]
    made, bad = over(BATCH, partition="place")
    assert [message.partition for message in made] == [0, -1, 7]
    below = BATCH.set_column(2, "place", pa.array([0, -1, 2**31]))
    made, bad = over(below, partition="place")
    assert [row for row, _, _ in bad] == [1, 2]


def test_headers() -> None:
    """By name in their order, a constant for every row; or a column that has them all."""
    named = (("id", Part(column="id")), ("note", Part(column="note")), ("v", Part(constant=b"1")))
    made, _ = over(BATCH, headers=named)
    assert made[1].headers == [("id", b"2"), ("note", None), ("v", b"1")]
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    column = pa.array([[{"key": "k", "value": b"v"}, {"key": "k", "value": None}], None, []], kind)
    made, _ = over(BATCH.append_column("h", column), headers="h")
    assert [message.headers for message in made] == [[("k", b"v"), ("k", None)], None, []]


@pytest.mark.parametrize("value", [float("nan"), [1.0, float("inf")], {"a": {"b": -float("inf")}}])
def test_json_has_no_nan(value: Any) -> None:
    """NaN and infinity are failures, however deep; nulls and numbers are not."""
    write = sg.Json().encoder()
    with pytest.raises(ValueError, match="no NaN"):
        write({"x": value, "null": None})
    assert write({"x": [1.5, None, {"y": "null"}]}) == b'{"x":[1.5,null,{"y":"null"}]}'
    many = sg.Json().rows(["x", "null"])
    assert many
    with pytest.raises(ValueError, match="no NaN"):
        many([[1.5, value, 2.5], [None, None, None]])
    assert many([[1.5, None], [None, "null"]])[0] == b'{"x":1.5,"null":null}'


def test_json_writes_what_spark_has() -> None:
    """Decimals as numbers, times as ISO 8601."""
    row = {"d": Decimal("1.20"), "t": datetime(2026, 1, 2, tzinfo=UTC)}
    assert sg.Json().encoder()(row) == b'{"d":1.20,"t":"2026-01-02T00:00:00Z"}'


LEAF = st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text() | st.floats()


@given(
    st.lists(st.text(max_size=9), min_size=1, max_size=4, unique=True),
    st.lists(st.lists(LEAF | st.lists(LEAF, max_size=2), min_size=4, max_size=4), max_size=5),
)
def test_json_of_many_rows(names: list[str], rows: list[list[Any]]) -> None:
    """Many rows at once are the bytes of one by one, and fail where one of them does."""
    write, json = sg.Json().rows(names), sg.Json().encoder()
    if write is None:
        assert any(mark in name for name in names for mark in {'"', "\\", *map(chr, range(32))})
        return
    rows = [row[: len(names)] for row in rows]
    columns = [[row[at] for row in rows] for at in range(len(names))]
    try:
        one_by_one = [json(dict(zip(names, row, strict=True))) for row in rows]
    except ValueError:
        with pytest.raises(ValueError, match="no NaN"):
            write(columns)
    else:
        assert write(columns) == one_by_one


def test_rows_whose_columns_have_odd_names() -> None:
    """A name that must be escaped is escaped."""
    batch = BATCH.select(["id"]).rename_columns(['a"b'])
    made, bad = over(batch, value=Part(format=sg.Json()))
    assert [message.value for message in made] == [b'{"a\\"b":%d}' % n for n in (1, 2, 3)]
    assert not bad


def test_rows_of_a_format_without_many() -> None:
    """A format of a plugin writes row by row."""

    class Names:
        def encoder(self) -> Any:
            return lambda row: ",".join(row).encode()

    made, _ = over(BATCH, value=Part(format=Names()))
    assert [message.value for message in made] == [b"id,note,place,raw"] * 3


@pytest.mark.parametrize(
    ("format", "value"), [(sg.Text(), 1.5), (sg.Text(), True), (sg.Raw(), "x")]
)
def test_what_a_format_does_not_write(format: Any, value: Any) -> None:
    """No format writes something else in a value's place."""
    with pytest.raises(TypeError):
        format.encoder()(value)
    assert sg.Text().encoder()(12) == b"12"
    assert sg.Raw().encoder()(bytearray(b"x")) == b"x"


def test_a_header_without_a_name() -> None:
    """P6: it is its row's failure, and not sent under some other name."""
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    column = pa.array([[{"key": None, "value": b"v"}], [], None], kind)
    made, bad = over(BATCH.append_column("h", column), headers="h")
    assert [message and message.headers for message in made] == [None, [], None]
    assert bad == [(0, ValueError, "A header has no name.")]


def test_a_format_that_gives_no_bytes() -> None:
    """P6: text is sent as UTF-8; anything else is the row's failure."""

    class Odd:
        def encoder(self) -> Any:
            return lambda value: 5 if value == 2 else str(value)

    made, bad = over(BATCH, value=Part(column="id", format=Odd()))
    assert [message and message.value for message in made] == [b"1", None, b"3"]
    assert [row for row, _, _ in bad] == [1]
