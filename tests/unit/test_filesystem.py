from io import StringIO
from pathlib import Path
from uuid import uuid4

import pytest
from pyarrow import fs as pafs

from sparkguard import filesystem
from sparkguard.errors import ConfigError


@pytest.fixture(params=["local", "object store", "fsspec"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A fresh folder of each kind: local, shown when closed, shown while it is written."""
    if request.param == "local":
        return str(tmp_path)
    if request.param == "object store":
        return f"memory://{uuid4().hex}"
    return f"simplecache::file://{tmp_path}"


def test_write_read_list_delete(folder: str) -> None:
    """A file is read as it was written, is replaced, listed and deleted."""
    fs, path = filesystem.resolve(folder)
    file = filesystem.join(path, "deep", "a.json")
    assert filesystem.read(fs, file) is None
    assert filesystem.list(fs, path) == ()
    filesystem.write_atomically(fs, file, b"1")
    filesystem.write_atomically(fs, file, b"22")
    assert filesystem.read(fs, file) == b"22"
    assert filesystem.list(fs, path) == ()
    (found,) = filesystem.list(fs, path, recursive=True)
    assert found.endswith("/deep/a.json")
    assert filesystem.exists(filesystem.join(folder, "deep", "a.json"))
    filesystem.delete(fs, file)
    filesystem.delete(fs, file)
    assert not filesystem.exists(filesystem.join(folder, "deep", "a.json"))


def test_upload(folder: str, tmp_path: Path) -> None:
    """An open file goes up from its beginning, wherever it was left."""
    fs, path = filesystem.resolve(folder)
    with (tmp_path / "source").open("wb+") as source:
        source.write(b"x" * 3_000_000)
        filesystem.upload(fs, filesystem.join(path, "copy"), source)
    assert filesystem.read(fs, filesystem.join(path, "copy")) == b"x" * 3_000_000


def test_a_failed_write_changes_nothing(tmp_path: Path) -> None:
    """The old file stays, and no unfinished one."""
    fs, path = filesystem.resolve(str(tmp_path))
    file = filesystem.join(path, "a")
    filesystem.write_atomically(fs, file, b"old")
    with pytest.raises(TypeError):
        filesystem.upload(fs, file, StringIO("text"))  # type: ignore[arg-type]
    assert filesystem.read(fs, file) == b"old"
    assert [one.name for one in tmp_path.iterdir()] == ["a"]


def test_unfinished_files_are_not_listed(tmp_path: Path) -> None:
    """What a killed process left half-written is no file."""
    Path(filesystem.temporary_name(str(tmp_path / "a"))).touch()
    assert filesystem.list(pafs.LocalFileSystem(), str(tmp_path)) == ()


@pytest.mark.parametrize(
    "place", ["file:{0}/my%20file", "file://{0}/my%20file", "local://{0}/my%20file", "{0}/my file"]
)
def test_local_paths(tmp_path: Path, place: str) -> None:
    """Spark names local files as URIs, with percent signs; they are the same place."""
    (tmp_path / "my file").write_bytes(b"here")
    fs, path = filesystem.resolve(place.format(tmp_path))
    assert filesystem.read(fs, path) == b"here"
    assert filesystem.exists(place.format(tmp_path))


def test_local_paths_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative path is resolved where it was given."""
    monkeypatch.chdir(tmp_path)
    assert filesystem.resolve("state/orders")[1] == str(tmp_path / "state" / "orders")
    assert filesystem.absolute("s3://bucket/state/") == "s3://bucket/state"


@pytest.mark.parametrize("uri", ["nope://user:hunter2@host/x", "nope://x"])
def test_unknown_scheme(uri: str) -> None:
    """A scheme that nobody knows gives a sentence, without the password in it."""
    with pytest.raises(ConfigError, match="No filesystem for") as caught:
        filesystem.resolve(uri)
    assert "hunter2" not in str(caught.value)


def test_join_behind_a_query() -> None:
    """The options of an object store stay behind the path."""
    folder = "s3://bucket/state?scheme=http&endpoint_override=127.0.0.1:9000"
    assert filesystem.join(folder, "breaches", "q.json") == (
        "s3://bucket/state/breaches/q.json?scheme=http&endpoint_override=127.0.0.1:9000"
    )
    assert filesystem.join("s3://bucket/state/", "stop") == "s3://bucket/state/stop"
    assert filesystem.join("/what?/state", "stop") == "/what?/state/stop"
