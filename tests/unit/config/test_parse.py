"""YAML, read more strictly than YAML 1.1, with the place of everything."""

from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from sparkguard.config.parse import Parsed, parse
from sparkguard.config.place import Place
from sparkguard.errors import InvalidSettingError


def read(text: str, **variables: str) -> Parsed:
    """Parse `text` as the file f.yaml."""
    return parse(text, "f.yaml", variables)


def value(text: str, **variables: str) -> Any:
    """What `a: text` gives, where nothing may be wrong."""
    parsed = read(f"a: {text}", **variables)
    assert parsed.problems == []
    return parsed.value["a"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("yes", "yes"),
        ("off", "off"),
        ("true", True),
        ("False", False),
        ("1:30", "1:30"),
        ("012", "012"),
        ("0x1F", "0x1F"),
        ("1_000", "1_000"),
        ("12", 12),
        ("-3", -3),
        ("0.05", 0.05),
        ("1e-3", 0.001),
        ("5.", 5.0),
        ("2026-11-21", "2026-11-21"),
        ("~", None),
        ("", None),
        ("'12'", "12"),
        ("!!str 12", "12"),
        ("[1, a]", [1, "a"]),
        ("1.2.3", "1.2.3"),
        (".", "."),
    ],
)
def test_scalars(text: str, expected: object) -> None:
    """The traps of YAML 1.1 are text; numbers and booleans look like such."""
    found = value(text)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize("key", ["on", "1", "true", "null"])
def test_keys_are_text(key: str) -> None:
    """A key is what is written, never a boolean or a number."""
    assert read(f"{key}: 1").value == {key: 1}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("${N}", 5),
        ("'${N}'", "5"),
        ('"${N}"', "5"),
        ("x${N}", "x5"),
        ("${T}", True),
        ("${STRUCTURE}", "{a: [1]}\nb: 2"),
        ("${NOPE:-0.5}", 0.5),
    ],
)
def test_variables(text: str, expected: object) -> None:
    """A plain variable is typed by its text, a quoted one is text; neither brings structure."""
    found = value(text, N="5", T="true", STRUCTURE="{a: [1]}\nb: 2")
    assert found == expected
    assert type(found) is type(expected)


def test_missing_variable_names_its_place() -> None:
    """A missing variable is reported with file, line, column and key path."""
    (problem,) = read("a:\n  b: [x, '${NOPE}']").problems
    assert str(problem).startswith("f.yaml:2:10: a.b[1]: The environment variable 'NOPE' is not")
    assert (problem.line, problem.column, problem.key_path) == (2, 10, "a.b[1]")


def test_duplicate_key() -> None:
    """The second key of one name is an error that names the first."""
    (problem,) = read("a: 1\nb:\n  c: 1\n  c: 2\n").problems
    assert str(problem) == "f.yaml:4:3: b.c: Duplicate key 'c'; the first stands in line 3."


def test_places() -> None:
    """Keys and values know where they stand."""
    places = read("a:\n  b: 1\n").places
    assert places.keys["a", "b"] == Place("f.yaml", 2, 3)
    assert places.values["a", "b"] == Place("f.yaml", 2, 6)
    assert places.find(("a", "nope", "deeper")) == Place("f.yaml", 2, 3)


def test_anchors_and_merges() -> None:
    """Anchors repeat, and ``<<`` fills in what is not said."""
    text = "x: &x {a: 1, b: 2}\ny: *x\nz:\n  <<: *x\n  b: 3\nw:\n  <<: [{c: 9}, *x]\n"
    assert read(text).problems == []
    found = read(text).value
    assert found["y"] == {"a": 1, "b": 2}
    assert found["z"] == {"a": 1, "b": 3}
    assert found["w"] == {"c": 9, "a": 1, "b": 2}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a: &a [*a]", "refers to a mapping or list that it stands in"),
        ("a: &a\n  <<: *a", "refers to a mapping that it stands in"),
        ("a:\n  <<: 5", "takes a mapping"),
        ("a: !!python/name:os.system x", "is not supported"),
        ("a: !secret x", "is not supported"),
        ("? [1]\n: 2", "A key must be text"),
        ("a: " + "9" * 5000, "This is no number"),
    ],
)
def test_noted_problems(text: str, sentence: str) -> None:
    """What YAML allows and settings do not is noted, and reading goes on."""
    (problem,) = read(f"{text}\nlast: 1").problems
    assert sentence in str(problem)
    assert problem.line is not None
    assert read(f"{text}\nlast: 1").value["last"] == 1


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("a: [1", "f.yaml:1:6"),
        ("a: 1\n b: 2", "f.yaml:2:3"),
        ("a: *nope", "f.yaml:1:4"),
        ("a: 1\n---\nb: 2", "f.yaml:2:1"),
        ("a:\n\tb: 1", "f.yaml:2:1"),
        ("a: \x00", "f.yaml"),
        ("[" * 5000, "f.yaml"),
    ],
)
def test_no_yaml(text: str, place: str) -> None:
    """Text that is no YAML is one sentence with its place, never a traceback of the parser."""
    with pytest.raises(InvalidSettingError) as caught:
        read(text)
    assert str(caught.value).startswith(f"{place}: ")
    assert "\n" not in str(caught.value)


def test_variable_in_braces_needs_quotes() -> None:
    """A plain variable in a flow mapping is no YAML; the error says what to do."""
    with pytest.raises(InvalidSettingError, match=r"with \$\{…\} must be quoted"):
        read("a: {b: ${C}}")


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inside: (
        st.lists(inside, max_size=3) | st.dictionaries(st.text("a:#-{ é"), inside, max_size=3)
    ),
    max_leaves=10,
)


@given(PLAIN)
def test_round_trip(written: Any) -> None:
    """What YAML writes is what is read, whatever the text looks like."""
    text = yaml.safe_dump({"a": written}, default_style='"').replace("$", "$$")
    parsed = read(text)
    assert parsed.problems == []
    assert parsed.value == {"a": written}
