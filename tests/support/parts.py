"""What a test needs of the machine, and what happens where the machine has it not."""

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import NoReturn

import pytest

OLDEST_JAVA = 17

#: Why tests were skipped for want of a part; shown at the end of the run.
missing: list[str] = []


class MissingPartError(RuntimeError):
    """The machine lacks something that a test needs; raised anywhere in a test, it is a skip."""


def in_ci() -> bool:
    """Whether a missing part is a failure instead of a skip."""
    return os.environ.get("CI", "").lower() not in {"", "0", "false"}


def report(error: MissingPartError) -> NoReturn:
    """Skip the test with a loud line; in CI, fail it."""
    if str(error) not in missing:
        missing.append(str(error))
    if in_ci():
        pytest.fail(str(error), pytrace=False)
    pytest.skip(str(error))


def java() -> Path:
    """The machine's `java`, of a version that Spark and Kafka run on."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=f"{home}/bin" if home else None)
    if found is None:
        message = f"There is no java here; install Java {OLDEST_JAVA} or newer."
        raise MissingPartError(message)
    version = _java_version(found)
    if version < OLDEST_JAVA:
        message = f"{found} is Java {version}; install Java {OLDEST_JAVA} or newer."
        raise MissingPartError(message)
    return Path(found)


def _java_version(path: str) -> int:
    said = subprocess.run([path, "-version"], capture_output=True, text=True, check=False)
    match = re.search(r'version "(\d+)', said.stderr)
    return int(match[1]) if match else 0
