"""Spark sessions for tests: small, quiet and on loopback."""

import atexit
import os
import shutil
import sys
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession

from tests.support import jars as maven
from tests.support import parts

ROOT = Path(__file__).parents[2]
LOG4J = Path(__file__).with_name("log4j2.properties")

CONF = {
    "spark.app.name": "sparkguard-tests",
    "spark.default.parallelism": "2",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile=file:{LOG4J}",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.stopTimeout": "30s",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


SHORT_LIVED = (
    # For a script that lives for seconds: a JVM that optimises little is up sooner.
    "--conf spark.driver.extraJavaOptions='-XX:TieredStopAtLevel=1 -XX:+UseSerialGC' "
    "--conf spark.ui.enabled=false --conf spark.ui.showConsoleProgress=false pyspark-shell"
)
"""PYSPARK_SUBMIT_ARGS of a process that a test starts."""


def session(master: str = "local[2]", *, jars: bool = True, **conf: str) -> SparkSession:
    """Start a session, or get the one that runs in this process already.

    Args:
        master: Such as "local[2]"; "local[2,4]" lets tasks be tried four times.
        jars: Whether Spark can read and write Kafka.
        conf: More settings; write `spark_ui_enabled="true"` for spark.ui.enabled, or pass
            `**{"spark.ui.enabled": "true"}`.
    """
    parts.java()
    _prepare_environment()
    builder = SparkSession.builder.master(master)
    for key, value in (CONF | _places() | connector(jars) | conf).items():
        builder = builder.config(key.replace("_", ".") if "." not in key else key, value)
    return builder.getOrCreate()


def _prepare_environment() -> None:
    """Have workers run this interpreter and find the modules of the tests."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if str(ROOT) not in path:
        os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, path)])


def _places() -> dict[str, str]:
    folder = tempfile.mkdtemp(prefix="sparkguard-spark-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return {"spark.local.dir": folder, "spark.sql.warehouse.dir": f"{folder}/warehouse"}


def connector(wanted: bool) -> dict[str, str]:
    """Settings with which Spark can read and write Kafka, if that is wanted."""
    return {"spark.jars": ",".join(map(str, maven.connector_jars()))} if wanted else {}
