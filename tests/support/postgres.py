"""A PostgreSQL server of the machine's own, for one test: on a socket in a folder, no port."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Self

from tests.support.parts import MissingPartError

_PLACES = "/usr/lib/postgresql"
_SECONDS = 60


class RefusedError(Exception):
    """PostgreSQL refused a statement; it says which constraint."""


class Postgres:
    """A server, and its client `psql`. Whoever is root runs it as the package's user."""

    def __init__(self) -> None:
        self._bin = _binaries()
        self._user = _user()
        self._folder = tempfile.mkdtemp(prefix="sg-pg-")
        if self._user is not None:
            shutil.chown(self._folder, self._user)

    def __enter__(self) -> Self:
        data = f"{self._folder}/data"
        self._run("initdb", "-D", data, "-A", "trust", "-U", "test", "--no-sync")
        options = f"-k {self._folder} -c listen_addresses='' -c fsync=off"
        # Its output would keep a pipe open for as long as it runs.
        self._run("pg_ctl", "-D", data, "-w", "-o", options, "-l", f"{self._folder}/log", "start")
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._run("pg_ctl", "-D", f"{self._folder}/data", "-m", "immediate", "stop")
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)

    def sql(self, statements: str) -> str:
        """Run statements in one transaction; the rows of a ``copy`` stand behind it.

        Raises:
            RefusedError: one of them failed, and none was done.
        """
        said = self._psql(statements)
        if said.returncode:
            raise RefusedError(said.stderr.strip())
        return said.stdout

    def _psql(self, text: str) -> subprocess.CompletedProcess[str]:
        command = [f"{self._bin}/psql", "-X", "-q", "-A", "-t", "-1", "-h", self._folder]
        command += ["-U", "test", "-d", "postgres", "-v", "ON_ERROR_STOP=1", "-f", "-"]
        return subprocess.run(
            command, input=text, capture_output=True, text=True, check=False, timeout=_SECONDS
        )

    def _run(self, name: str, *arguments: str) -> None:
        as_user: dict[str, Any] = {} if self._user is None else {"user": self._user}
        run = subprocess.run(
            [f"{self._bin}/{name}", *arguments],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=_SECONDS,
            cwd=self._folder,
            **as_user,
        )
        if run.returncode:
            raise RuntimeError(f"{name}: {run.stderr.strip()}")


def _binaries() -> str:
    """The newest server that Debian's package has put here, else the one on the path."""
    found = sorted(Path(_PLACES).glob("*/bin/initdb"), key=lambda it: int(it.parts[-3]))
    here = str(found[-1]) if found else shutil.which("initdb")
    if here is None:
        message = "There is no PostgreSQL here; install the package postgresql."
        raise MissingPartError(message)
    return str(Path(here).parent)


def _user() -> str | None:
    """Who runs the server: it refuses to be root's."""
    if os.getuid() != 0:
        return None
    try:
        return pwd.getpwnam("postgres").pw_name
    except KeyError:
        message = "PostgreSQL does not run as root, and there is no user postgres."
        raise MissingPartError(message) from None
