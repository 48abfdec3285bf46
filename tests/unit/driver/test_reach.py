"""Whether a broker answers, asked before Spark asks."""

import socket

import pytest

from sparkguard.driver.reach import answers
from tests.support.process import free_port


def test_one_of_several_is_enough() -> None:
    """A server that accepts connections answers, whoever stands beside it and how it is spelled."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert answers(f"127.0.0.1:{port}")
        assert answers(f"nobody.invalid:9092, PLAINTEXT://127.0.0.1:{port}")


@pytest.mark.parametrize("servers", ["", "localhost", "localhost:x", "localhost:99999999"])
def test_no_address(servers: str) -> None:
    """What is no address does not answer, and does not raise."""
    assert not answers(servers)


def test_nobody_there() -> None:
    """A port that nobody listens at does not answer."""
    assert not answers(f"127.0.0.1:{free_port()}")
