"""Unit tests decide and compute; none of them starts a JVM."""

from collections.abc import Iterator
from typing import NoReturn

import pytest


@pytest.fixture(scope="module", autouse=True)
def _no_jvm() -> Iterator[None]:
    """Refuse a Spark context, so that a test that needs one is put where it belongs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pyspark.core.context.SparkContext._ensure_initialized", _refuse)
        yield


def _refuse(*_: object, **__: object) -> NoReturn:
    pytest.fail("A unit test started Spark; move it to tests/spark or tests/flow.")
