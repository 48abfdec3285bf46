"""An answer: what a command says, to people and to programs, and its exit code."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import typer

from sparkguard.cli.shown import safe
from sparkguard.errors import SparkguardError

PROBLEM = 1
"""Exit code of a command that found a problem or could not do its work."""

_UNSAFE = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


@contextmanager
def told(*, as_json: bool) -> Iterator[None]:
    """Turn sparkguard's own errors, and those of filesystems, into sentences and exit code 1."""
    try:
        yield
    except SparkguardError as error:
        refuse(str(error).splitlines(), as_json=as_json)
    except OSError as error:
        # A store that is down or refuses is no fault of ours, and its message says which one it is.
        refuse(str(error).splitlines()[:1], as_json=as_json)


def refuse(problems: list[str], *, as_json: bool) -> NoReturn:
    """Say what is wrong, one problem a line, and exit with 1."""
    if as_json:
        say_json({"ok": False, "problems": problems})
    else:
        for problem in problems:
            typer.echo(safe(f"error: {problem}"), err=True)
    raise typer.Exit(PROBLEM)


def say_json(answer: Any) -> None:
    """Print `answer` as JSON, indented for people who look at it too.

    What a terminal would obey, or no UTF-8 holds, is escaped as JSON has it.
    """
    text = json.dumps(answer, indent=2, ensure_ascii=False, allow_nan=False, default=str)
    sys.stdout.write(_UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text) + "\n")
