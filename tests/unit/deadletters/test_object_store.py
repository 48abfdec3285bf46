"""Letters in an object store, over its own protocol."""

from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest
from moto.server import ThreadedMotoServer

from sparkguard.core.letter import Letter
from sparkguard.deadletters.compact import compact
from sparkguard.deadletters.selection import Selection
from sparkguard.deadletters.store import Store
from sparkguard.driver.state import State
from sparkguard.sinks.base import SinkTask
from sparkguard.sinks.file import FileSink
from sparkguard.testing.sinks import sample_letters

KEYS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1"}


@pytest.fixture(name="bucket")
def _bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A bucket, with the URI's options that lead to it."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    for name, value in {**KEYS, "AWS_EC2_METADATA_DISABLED": "true"}.items():
        monkeypatch.setenv(name, value)
    client = boto3.client("s3", endpoint_url=f"http://{host}:{port}", region_name="us-east-1")
    client.create_bucket(Bucket="letters")
    yield f"s3://letters/%s?scheme=http&endpoint_override={host}:{port}"
    server.stop()


def _write(path: str, letters: list[Letter]) -> None:
    writer = FileSink(path=path).open(SinkTask())
    for letter in letters:
        writer.write(letter)
    writer.flush()
    writer.close()


def test_letters_in_a_bucket(bucket: str, tmp_path: Path) -> None:
    """P2, P3: written, read, marked, exported and compacted there as in a folder."""
    path = bucket % "dead"
    letters = sample_letters()
    for letter in [*letters, letters[0]]:
        _write(path, [letter])
    chosen = Selection(ids=(letters[0].id,))
    with Store({"s3": FileSink(path=path)}) as store:
        assert {one.id: one for one in store.letters()} == {one.id: one for one in letters}
        assert (store.stats().copies, store.skipped) == (1, ())
        assert store.resolve(chosen, "fixed", "me") == 1
        assert store.export(tmp_path / "out.parquet", chosen) == 1
    done = compact(FileSink(path=path))
    assert (done.before, done.after, done.copies) == (len(letters) + 1, 1, 1)
    with Store({"s3": FileSink(path=path)}) as store:
        left = {one.id for one in store.letters(Selection(unresolved=True))}
        assert left == {one.id for one in letters[1:]}


def test_state_in_a_bucket(bucket: str) -> None:
    """P4, P14: documents and the stop marker of an app."""
    state = State(bucket % "state")
    state.check()
    state.store("ledger/a", {"one": 1})
    state.request_stop()
    again = State(bucket % "state")
    assert again.load("ledger/a") == {"one": 1}
    assert again.names("ledger") == ["ledger/a"]
    assert again.stop_requested()
    again.clear_stop()
    assert not again.stop_requested()
