"""Jars from Maven Central, fetched once a machine by the poms in `poms/`."""

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.support.parts import MissingPartError

POMS = Path(__file__).parent / "poms"
# Not every mirror has this jar of every Spark; the older one works with the newer connector.
TOKEN_PROVIDER_VERSIONS = ("4.2.0", "4.0.0")
MAVEN_SECONDS = 300


def broker_jars() -> Path:
    """The folder with everything that the Kafka broker needs."""
    return _fetched(POMS / "kafka/pom.xml", [()])


def connector_jars() -> list[Path]:
    """Spark's Kafka connector and what pyspark does not bring for it."""
    attempts = [(f"-Dtoken.provider.version={version}",) for version in TOKEN_PROVIDER_VERSIONS]
    return sorted(_fetched(POMS / "connector/pom.xml", attempts).glob("*.jar"))


def cache() -> Path:
    """Where jars stay from one run to the next."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "sparkguard-tests"


def _fetched(pom: Path, attempts: Sequence[tuple[str, ...]]) -> Path:
    digest = hashlib.sha256(pom.read_bytes()).hexdigest()[:12]
    target = cache() / f"{pom.parent.name}-{digest}"
    if target.exists():
        return target
    with _locked(cache() / f"{target.name}.lock"):
        if not target.exists():
            _fetch(pom, attempts, target)
    return target


def _fetch(pom: Path, attempts: Sequence[tuple[str, ...]], target: Path) -> None:
    """Fill a folder beside the target and rename it, so that half a download is never used."""
    maven = shutil.which("mvn")
    if maven is None:
        message = "There is no mvn here; install Maven, which fetches Kafka for the tests."
        raise MissingPartError(message)
    said = ""
    for options in attempts:
        draft = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}-"))
        said = _copy_dependencies(maven, pom, draft, options)
        if not said:
            draft.rename(target)
            return
        shutil.rmtree(draft)
    message = f"Maven could not fetch the jars of {pom.parent.name}: {said}"
    raise MissingPartError(message)


def _copy_dependencies(maven: str, pom: Path, target: Path, options: tuple[str, ...]) -> str:
    """Run Maven; give back its first error, or nothing."""
    command = [maven, "-q", "-B", "-f", str(pom), "dependency:copy-dependencies"]
    command += [f"-DoutputDirectory={target}", *options]
    try:
        run = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=MAVEN_SECONDS
        )
    except subprocess.TimeoutExpired:
        return f"no end after {MAVEN_SECONDS} s."
    if run.returncode == 0:
        return ""
    said = run.stdout.splitlines() + run.stderr.splitlines()
    return next((line for line in said if "ERROR" in line), f"exit status {run.returncode}.")


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
