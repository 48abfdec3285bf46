"""A directory on any filesystem: small files, read and replaced whole."""

from __future__ import annotations

from datetime import datetime

from sparkguard import filesystem


class Directory:
    """Reads and replaces small files by their name below one path."""

    def __init__(self, path: str) -> None:
        self.path = filesystem.absolute(path)
        self._fs, self._root = filesystem.resolve(self.path)

    def at(self, name: str) -> str:
        """The full path or URI of a name."""
        return filesystem.join(self.path, name)

    def read(self, name: str) -> bytes | None:
        """The file's bytes, None where there is none."""
        return filesystem.read(self._fs, filesystem.join(self._root, name))

    def write(self, name: str, data: bytes) -> None:
        """Replace the file, all of it or nothing."""
        filesystem.write_atomically(self._fs, filesystem.join(self._root, name), data)

    def delete(self, name: str) -> None:
        """Remove the file, if there is one."""
        filesystem.delete(self._fs, filesystem.join(self._root, name))

    def written_at(self, name: str) -> datetime | None:
        """When the file was written; None where there is none, or the filesystem keeps no times."""
        found: datetime | None = self._fs.get_file_info(filesystem.join(self._root, name)).mtime
        return found

    def holds(self, folder: str) -> bool:
        """Whether there is such a folder."""
        return filesystem.exists(filesystem.join(self.path, folder))

    def names(self, folder: str) -> list[str]:
        """Names of the files in a folder, without the folder's."""
        found = filesystem.list(self._fs, filesystem.join(self._root, folder))
        return [path.rpartition("/")[2] for path in found]
