"""Fixtures for every test: a Spark session, a Kafka broker, and fresh topics."""

import itertools
import re
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import hypothesis
import pytest

from tests.support import jars, parts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.support.kafka import Broker

# The first call into Arrow or msgspec takes longer than any deadline that would mean something.
hypothesis.settings.register_profile("sparkguard", deadline=None)
hypothesis.settings.load_profile("sparkguard")

HERE = Path(__file__).parent
FIXTURE_MARKS = {"spark": "spark", "broker": "kafka", "topic": "kafka"}


class MakeTopic(Protocol):
    """Creates a topic with a fresh name, and gives the name back."""

    def __call__(self, partitions: int = 1, **config: str) -> str:
        """Create it; `config` is the topic's, such as max_message_bytes="2000000"."""
        ...


@pytest.fixture(scope="session")
def spark() -> "Iterator[SparkSession]":
    """One session for all tests, `local[2]`, with the Kafka connector."""
    from tests.support.spark import session

    found = session(jars=connector_is_there())
    yield found
    found.stop()


def connector_is_there() -> bool:
    """Without Maven the tests that need no Kafka still run."""
    try:
        return bool(jars.connector_jars())
    except parts.MissingPartError:
        return False


@pytest.fixture(autouse=True)
def _no_query_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Stop the queries that a test has left running, before the next one meets them."""
    yield
    if "spark" in request.fixturenames:
        spark: SparkSession = request.getfixturevalue("spark")
        for query in spark.streams.active:
            query.stop()


@pytest.fixture(scope="session")
def broker() -> "Iterator[Broker]":
    """One broker for all tests; a test that harms it starts a `Broker()` of its own."""
    from tests.support.kafka import Broker

    with Broker() as started:
        yield started


@pytest.fixture
def topic(broker: "Broker", request: pytest.FixtureRequest) -> MakeTopic:
    """Creates topics whose names begin with the test's."""
    name = re.sub(r"[^\w.-]+", "-", request.node.name).strip("-")[:100]
    numbers = itertools.count(1)

    def make(partitions: int = 1, **config: str) -> str:
        settings = {key.replace("_", "."): value for key, value in config.items()}
        return broker.create_topic(f"{name}-{next(numbers)}", partitions, settings)

    return make


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests by what they use, and run those first that need nothing."""
    for item in items:
        for name in FIXTURE_MARKS.keys() & getattr(item, "fixturenames", ()):
            item.add_marker(FIXTURE_MARKS[name])
        if {HERE / "faults", HERE / "cluster"} & set(item.path.parents):
            item.add_marker("faults")
    items.sort(key=lambda item: HERE / "unit" not in item.path.parents)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, None, None]:
    """Skip, or in CI fail, a test whose fixtures miss a part of the machine."""
    try:
        return (yield)
    except parts.MissingPartError as error:
        parts.report(error)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Likewise for a test that asks for such a part itself."""
    try:
        return (yield)
    except parts.MissingPartError as error:
        parts.report(error)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say loudly what was skipped for want of a part."""
    for message in parts.missing:
        terminalreporter.write_line(f"NOT EVERYTHING WAS TESTED: {message}", red=True, bold=True)
