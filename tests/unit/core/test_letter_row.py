import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkguard.core.letter import Letter
from sparkguard.core.letter_row import LETTER_SCHEMA, letter_from_row, letter_row, letter_table
from tests.support.letters import ANY, letters


@settings(deadline=None)
@given(st.lists(letters(), max_size=4))
def test_rows_round_trip(written: list[Letter]) -> None:
    """A letter comes back from its row as it was, whatever is null in it."""
    table = pa.Table.from_pylist([letter_row(letter) for letter in written], schema=LETTER_SCHEMA)
    assert [letter_from_row(row) for row in table.to_pylist()] == written


@settings(deadline=None)
@given(st.lists(letters(), max_size=4))
def test_columns_equal_rows(written: list[Letter]) -> None:
    """The fast way by column gives the same table as the plain way by row."""
    rows = pa.Table.from_pylist([letter_row(letter) for letter in written], schema=LETTER_SCHEMA)
    table = letter_table(written)
    assert table.equals(rows)
    table.validate(full=True)


@settings(deadline=None)
@given(st.lists(letters(ANY), max_size=4))
def test_no_letter_raises(written: list[Letter]) -> None:
    """P17: text that no UTF-8 can hold is spelled out; bytes stay as they are."""
    found = [letter_from_row(row) for row in letter_table(written).to_pylist()]
    assert [(one.id, one.record.key, one.record.value) for one in found] == [
        (one.id, one.record.key, one.record.value) for one in written
    ]


def test_an_older_file_has_fewer_columns() -> None:
    """Columns that a file lacks get the values of their absence."""
    row = {"id": "1", "category": "processing", "cause": "poison", "value": bytearray(b"v")}
    letter = letter_from_row(row)
    assert (letter.replays, letter.record.value, letter.record.headers) == (0, b"v", ())
