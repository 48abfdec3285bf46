"""Files by path or URI: local, what pyarrow knows (s3, gs, hdfs, abfs), else any fsspec protocol.

A file that others may read appears whole or not at all. On a filesystem that shows half-written
files it is written under a temporary name and moved; an object store shows an object when its
upload ends, so there it is written in place.
"""

from __future__ import annotations

import os
import re
import shutil
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import IO, Any, Final
from urllib.parse import unquote
from uuid import uuid4

import pyarrow as pa
from pyarrow import fs as pafs

from sparkguard.errors import ConfigError

TEMPORARY: Final = "_tmp-"
"""Names of unfinished files start so; Spark and DuckDB's ``*.parquet`` leave them alone."""

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]+:(//|:)")
_LOCAL = re.compile(r"(file|local):(?://(?=/)|(?=/))")
_OBJECT_STORES = frozenset(
    {"abfs", "abfss", "adl", "az", "gcs", "gs", "memory", "oci", "oss", "s3", "s3a", "s3n"}
)
_CHUNK: Final = 1 << 20


def is_local(path_or_uri: str) -> bool:
    """Whether it is a path of this machine, with or without ``file:``."""
    return bool(_LOCAL.match(path_or_uri)) or not _SCHEME.match(path_or_uri)


def absolute(path_or_uri: str) -> str:
    """The same place whatever the working directory is; URIs of other machines stay as they are."""
    if not is_local(path_or_uri):
        return path_or_uri.rstrip("/")
    if prefix := _LOCAL.match(path_or_uri):
        return str(Path(unquote(path_or_uri[prefix.end() :])).resolve())
    return str(Path(path_or_uri).expanduser().resolve())


def join(folder: str, *names: str) -> str:
    """A path or URI below a folder."""
    place, query = folder, ""
    if not is_local(folder):
        # Options of a store stand behind the path: s3://bucket/folder?endpoint_override=…
        place, mark, options = folder.partition("?")
        query = mark + options
    return "/".join((place.rstrip("/"), *names)) + query


def resolve(path_or_uri: str) -> tuple[pafs.FileSystem, str]:
    """The filesystem and the path on it; a local path becomes absolute.

    Raises:
        ConfigError: nobody knows the URI's scheme, or its driver is not installed.
    """
    place = absolute(path_or_uri)
    if is_local(path_or_uri):
        return pafs.LocalFileSystem(), place
    try:
        found: tuple[pafs.FileSystem, str] = pafs.FileSystem.from_uri(place)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return _by_fsspec(place)
    return found


def _by_fsspec(uri: str) -> tuple[pafs.FileSystem, str]:
    import fsspec

    try:
        handler, path = fsspec.core.url_to_fs(uri)
    except (ImportError, ValueError) as error:
        msg = f"No filesystem for {without_password(uri)!r}: {error}."
        raise ConfigError(msg) from error
    return pafs.PyFileSystem(pafs.FSSpecHandler(handler)), path


def without_password(uri: str) -> str:
    """The URI as it may be shown."""
    return re.sub(r"(://[^/@:]*:)[^/@]*@", r"\1***@", uri)


def write_atomically(fs: pafs.FileSystem, path: str, data: bytes) -> None:
    """Write a file, or replace it, so that a reader sees the old or the new one, never half of it.

    Locally it survives a power cut from here on, at the price of two fsyncs.
    """
    upload(fs, path, BytesIO(data))


def create(fs: pafs.FileSystem, path: str, data: bytes) -> bool:
    """Write a file that is not there yet; False where it is.

    Locally only one of many can succeed. Elsewhere two that try within the same moment may both.
    """
    if not isinstance(fs, pafs.LocalFileSystem):
        if fs.get_file_info(path).type != pafs.FileType.NotFound:
            return False
        write_atomically(fs, path, data)
        return read(fs, path) == data
    temporary = temporary_name(path)
    write_atomically(fs, temporary, data)
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    finally:
        delete(fs, temporary)
    return True


def upload(fs: pafs.FileSystem, path: str, source: IO[bytes]) -> None:
    """Like `write_atomically`, from the beginning of an open file, in pieces of 1 MiB."""
    temporary = temporary_name(path)
    if isinstance(fs, pafs.LocalFileSystem):
        _write_local(temporary, path, source)
        return
    if _is_object_store(fs):
        _write_stream(fs, path, source)
        return
    fs.create_dir(path.rpartition("/")[0], recursive=True)
    _write_stream(fs, temporary, source)
    try:
        fs.move(temporary, path)
    except OSError:
        # HDFS among others renames onto no existing file.
        delete(fs, path)
        fs.move(temporary, path)


def temporary_name(path: str) -> str:
    """A fresh name for the unfinished form of a file, in the same folder."""
    folder, slash, name = path.rpartition("/")
    return f"{folder}{slash}{TEMPORARY}{uuid4().hex[:12]}-{name[:100]}.part"


def _write_local(temporary: str, path: str, source: IO[bytes]) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    try:
        with Path(temporary).open("xb") as file:
            _copy(source, file)
            fsync(file)
        publish_local(temporary, path)
    except BaseException:
        with suppress(OSError):
            Path(temporary).unlink()
        raise


def fsync(file: IO[bytes]) -> None:
    """Bring an open local file to the disk."""
    file.flush()
    os.fsync(file.fileno())


def publish_local(temporary: str, path: str) -> None:
    """Move a local file, already fsynced, to its final name for good."""
    Path(temporary).replace(path)
    folder = os.open(Path(path).parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _write_stream(fs: pafs.FileSystem, path: str, source: IO[bytes]) -> None:
    try:
        with fs.open_output_stream(path) as stream:
            _copy(source, stream)
    except BaseException:
        # Leaving the `with` may have finished the upload of what there was.
        with suppress(Exception):
            delete(fs, path)
        raise


def _copy(source: IO[bytes], stream: Any) -> None:
    source.seek(0)
    shutil.copyfileobj(source, stream, _CHUNK)


def _is_object_store(fs: pafs.FileSystem) -> bool:
    return str(fs.type_name).rpartition("+")[2] in _OBJECT_STORES


def read(fs: pafs.FileSystem, path: str) -> bytes | None:
    """The file's bytes, None where there is none."""
    try:
        with fs.open_input_stream(path, compression=None) as stream:
            data: bytes = stream.read()
    except FileNotFoundError:
        return None
    return data


def delete(fs: pafs.FileSystem, path: str) -> None:
    """Delete a file; there may be none."""
    with suppress(FileNotFoundError):
        fs.delete_file(path)


def list(fs: pafs.FileSystem, folder: str, *, recursive: bool = False) -> tuple[str, ...]:
    """The paths of the finished files in a folder, sorted; empty where there is no folder."""
    selector = pafs.FileSelector(folder, allow_not_found=True, recursive=recursive)
    return tuple(
        sorted(
            str(info.path)
            for info in fs.get_file_info(selector)
            if info.type == pafs.FileType.File and not info.base_name.startswith(TEMPORARY)
        )
    )


def exists(path_or_uri: str) -> bool:
    """Whether there is a file or folder; one look, made anew each time."""
    if is_local(path_or_uri):
        return Path(absolute(path_or_uri)).exists()
    fs, path = resolve(path_or_uri)
    return bool(fs.get_file_info(path).type != pafs.FileType.NotFound)
