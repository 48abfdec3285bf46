"""Every promise stands on the page, and the tests that it names do hold it."""

import re

from tests.docs.conftest import ROOT

PAGE = (ROOT / "docs/guarantees.md").read_text()
_PROMISE = re.compile(r"^\*\*P(\d+)\. (.*?)(?=^\*\*P|^## |\Z)", re.MULTILINE | re.DOTALL)
PROMISES = {int(number): text for number, text in _PROMISE.findall(PAGE)}


def test_all_of_them() -> None:
    """P1 to P21, in order."""
    assert list(PROMISES) == list(range(1, 22))


def test_named_tests_hold_them() -> None:
    """A file that is named for a promise has the promise's number in a docstring."""
    for number, text in PROMISES.items():
        files = re.findall(r"\]\(\.\./(tests/[\w/.]+)\)", text)
        assert files or number == 21, f"no test is named for P{number}"
        for file in files:
            held = re.search(rf'"""[^"]*\bP{number}\b', (ROOT / file).read_text())
            assert held, f"{file} says nothing about P{number}"
