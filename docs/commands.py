"""Commands of sparkguard, run for the pages that show what they print."""

from __future__ import annotations

import os
import re
import shlex
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from typer.testing import CliRunner

from sparkguard.cli import app

_WHEN = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d$", re.MULTILINE)


@contextmanager
def workplace(settings: str) -> Iterator[str]:
    """A folder with a `guard.yaml`, as the working directory; its path."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as name:
        os.chdir(name)
        try:
            Path("guard.yaml").write_text(settings, encoding="utf-8")
            yield str(Path(name).resolve())
        finally:
            os.chdir(before)


def printed(command: str, folder: str, *, last: int = 0, code: int = 0) -> str:
    """What a command prints, as a block; the folder has another name in it.

    Args:
        last: only so many lines of it.
        code: the exit code that it must have.
    """
    done = CliRunner().invoke(app, shlex.split(command))
    if done.exit_code != code:
        raise RuntimeError(f"{command}: {done.output}")
    text = done.stdout.replace(folder, "/srv/orders")
    text = re.sub(r"date=\S+\.parquet", "date=2026-01-31/orders-….parquet", text)
    lines = [line.rstrip() for line in text.strip().splitlines()]
    kept = ["…", *lines[-last:]] if last else lines
    return "\n".join(["```text", f"$ sparkguard {command}", *kept, "```"])


def at_noon(block: str) -> str:
    """The block with one time at the ends of its lines, whenever it was printed."""
    return _WHEN.sub("2026-01-31 12:00:00", block)
