"""What holds for every test in this folder."""

import pytest
from pyspark import SparkContext


def test_unit_tests_start_no_jvm() -> None:
    """A unit test that starts Spark fails with a sentence instead of growing slow."""
    with pytest.raises(pytest.fail.Exception, match="move it to"):
        SparkContext("local[1]")
