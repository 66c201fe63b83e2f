"""Blobs as files of a folder that several machines mount."""

from __future__ import annotations

import fcntl
import hashlib
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tasks.storage.files import room_in, write_once, write_whole
from validators.digests import digest_file
from validators.errors import JobError, ObjectMissing, StorageRefused, WrongBytes

SCHEME = "file://"
# Hidden files are not blobs: the lock of the folder, and files that are being written.
_LOCK = ".lock"


@dataclass(frozen=True)
class FolderBlobs:
    """See `Blobs`. A version is the sha256 of the bytes.

    A hard link creates a blob, and fails if the name is taken. Replacing or deleting one needs the lock of the folder, which
    the kernel frees when its holder ends.
    """

    root: Path

    @property
    def address(self) -> str:
        """See `Blobs`."""
        return f"{SCHEME}{self.root}"

    def read(self, name: str) -> tuple[bytes, str]:
        """See `Blobs`."""
        with self._errors(name):
            data = self._path(name).read_bytes()
        return data, hashlib.sha256(data).hexdigest()

    def fetch(self, name: str, path: Path, sha256: str) -> None:
        """See `Blobs`."""
        with (
            self._errors(name),
            self._path(name).open("rb") as source,
            room_in(path.parent),
            write_whole(path) as partial,
        ):
            with partial.open("wb") as copy:
                shutil.copyfileobj(source, copy)
            if digest_file(partial) != sha256:
                raise WrongBytes(
                    found=f"{self.address}/{name} has another sha256 than {sha256[:12]}",
                    expected="the bytes that were stored",
                    fix="delete the file and run again",
                )

    def write_once(self, name: str, content: bytes | Path) -> str | None:
        """See `Blobs`."""
        path = self._path(name)
        with self._errors(name):
            path.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, bytes):
                digest, written = (
                    hashlib.sha256(content).hexdigest(),
                    write_once(path, lambda to: to.write_bytes(content)),
                )
            else:
                digest, written = digest_file(content), write_once(path, lambda to: shutil.copyfile(content, to))
        return digest if written else None

    def replace(self, name: str, data: bytes, version: str) -> str | None:
        """See `Blobs`."""
        with self._errors(name), self._alone():
            if self._version(name) != version:
                return None
            with write_whole(self._path(name)) as partial:
                partial.write_bytes(data)
        return hashlib.sha256(data).hexdigest()

    def list(self, prefix: str) -> Iterator[str]:
        """See `Blobs`."""
        files = (path for path in self._path(prefix).rglob("*") if path.is_file() and not path.name.startswith("."))
        yield from sorted(path.relative_to(self.root).as_posix() for path in files)

    def delete(self, name: str, version: str | None = None) -> bool:
        """See `Blobs`."""
        with self._errors(name), self._alone():
            if version is not None and self._version(name) != version:
                return False
            self._path(name).unlink(missing_ok=True)
        return True

    def _path(self, name: str) -> Path:
        path = self.root / name
        assert ".." not in path.parts and path.is_relative_to(self.root), name
        return path

    def _version(self, name: str) -> str | None:
        path = self._path(name)
        return digest_file(path) if path.exists() else None

    @contextmanager
    def _alone(self) -> Iterator[None]:
        self.root.mkdir(parents=True, exist_ok=True)
        with (self.root / _LOCK).open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    @contextmanager
    def _errors(self, name: str) -> Iterator[None]:
        try:
            with room_in(self.root):
                yield
        except FileNotFoundError as error:
            raise ObjectMissing(
                found=f"{self.address}/{name}: no such file",
                expected="a file that was stored",
                fix="check that the folder is mounted",
            ) from error
        except PermissionError as error:
            raise StorageRefused(
                found=f"{self.address}/{name}: {error.strerror}",
                expected="a folder that this user may read and write",
                fix="check the owner and the permissions of the folder",
            ) from error


def open_folder(address: str, _seconds: float | None) -> FolderBlobs:
    """Open `file:///folder`.

    Raises:
        JobError: the folder is not an absolute path.
    """
    root = Path(address.removeprefix(SCHEME))
    if not root.is_absolute() or ".." in root.parts:
        raise JobError(
            found=f"{address[:200]!r}: not an absolute path",
            expected="file:///folder, a folder that all machines mount",
            fix="correct QUANTGATE_STORE",
        )
    return FolderBlobs(root)
