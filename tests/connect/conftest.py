"""One Spark Connect server for these tests, and one client session.

A process that has worked with Spark Connect cannot make a classic session afterwards, so these
tests run in a process of their own.
"""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from tests.conftest import connector_is_there
from tests.support.connect import ConnectServer


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A session of Spark Connect."""
    with ConnectServer(jars=connector_is_there()) as server:
        found = SparkSession.builder.remote(server.url).getOrCreate()
        yield found
        found.stop()
