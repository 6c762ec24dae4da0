"""Blobs in a folder: each object is a file, written aside, flushed to the disk, and then renamed to its name."""

import os
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from io import BufferedWriter, FileIO
from pathlib import Path

from holdfast.blobs.store import CHUNK_BYTES, BlobStore, NoObject, Stored

ASIDE = "tmp"
"""The folder for files that are being written. `list` doesn't show them."""

ASIDE_SECONDS = 24 * 3_600
"""A file that has been aside for this long was left by a process that died."""


class FolderBlobs(BlobStore):
    """Objects in the files of a folder, which is created with the first object."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self.place = str(self.root)
        self.address = self.root.as_uri()

    def put(self, key: str, chunks: Iterable[bytes], marks: Sequence[str] = ()) -> None:
        """See BlobStore."""
        path, aside = self._path(key), self.root / ASIDE / secrets.token_hex(8)
        self._make_folder(aside.parent)
        try:
            with _open_new(aside) as file:
                for chunk in chunks:
                    file.write(chunk)
                file.flush()
                os.fsync(file.fileno())
            folders = {self._make_folder(path.parent), *(self._touch(mark) for mark in marks)}
            aside.rename(path)
        except BaseException:
            with suppress(OSError):
                aside.unlink()
            raise
        _flush_folders(folders)

    def mark(self, keys: Sequence[str]) -> None:
        """See BlobStore."""
        _flush_folders({self._touch(key) for key in keys})

    def get(self, key: str) -> Iterator[bytes]:
        """See BlobStore."""
        try:
            file = self._path(key).open("rb", buffering=0)
        except FileNotFoundError:
            raise NoObject(key) from None
        return _chunks(file)

    def size(self, key: str) -> int | None:
        """See BlobStore."""
        try:
            return self._path(key).stat().st_size
        except (FileNotFoundError, NotADirectoryError):
            return None

    def list(self, prefix: str = "") -> Iterator[Stored]:
        """See BlobStore."""
        return self._walk(self.root, "", prefix)

    def _walk(self, folder: Path, inside: str, prefix: str) -> Iterator[Stored]:
        for name in sorted(_names(folder)):
            path, key = folder / name, f"{inside}{name}"
            if path.is_dir():
                below = f"{key}/"
                if key != ASIDE and (below.startswith(prefix) or prefix.startswith(below)):
                    yield from self._walk(path, below, prefix)
            elif key.startswith(prefix):
                with suppress(FileNotFoundError):
                    stat = path.stat()
                    yield Stored(key, stat.st_size, stat.st_mtime_ns // 1_000_000)

    def move(self, key: str, to: str) -> None:
        """See BlobStore."""
        path, target = self._path(key), self._path(to)
        self._make_folder(target.parent)
        with suppress(FileNotFoundError):
            os.utime(path)  # before, so that it never looks old at its new place
            path.rename(target)
            _flush_folders({path.parent, target.parent})

    def delete(self, keys: Sequence[str]) -> None:
        """See BlobStore."""
        for key in keys:
            self._path(key).unlink(missing_ok=True)

    def tidy(self, now: float) -> None:
        """Remove files that dead processes have left aside."""
        for name in _names(self.root / ASIDE):
            left = self.root / ASIDE / name
            with suppress(OSError):
                if left.stat().st_mtime < now - ASIDE_SECONDS:
                    left.unlink()

    def _path(self, key: str) -> Path:
        return self.root / key

    def _touch(self, key: str) -> Path:
        """Create an empty file, or give it a new time; return its folder."""
        path = self._path(key)
        self._make_folder(path.parent)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
        os.utime(path)
        return path.parent

    def _make_folder(self, folder: Path) -> Path:
        if not folder.is_dir():
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            _flush_folders({folder.parent, self.root.parent})
        return folder


def _open_new(path: Path) -> BufferedWriter:
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb")


def _chunks(file: FileIO) -> Iterator[bytes]:
    with file:
        while chunk := file.read(CHUNK_BYTES):
            yield chunk


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _flush_folders(folders: Iterable[Path]) -> None:
    """Make new names in these folders durable."""
    for folder in folders:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
