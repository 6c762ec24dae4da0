"""The files of a database, and what to do if somebody removes them while they are open.

Must not run a statement. SQLite keeps writing to a file that was unlinked, and nobody else would ever see those writes.
"""

import ctypes
import os
import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path

from msgspec import DecodeError, Struct, json

from holdfast.core.errors import StoreLost
from holdfast.core.model import Time
from holdfast.engines.live_folder import make_live_folder

LOG, MEMORY = "-wal", "-shm"
"""The suffixes of SQLite's write-ahead log and of its shared memory."""

DATABASE, BESIDE = ("",), (LOG, MEMORY)
ALL = (*DATABASE, *BESIDE)

NOTE = "lost"
"""The file in the liveness folder that says which files were found missing."""

COPY_BYTES = 1 << 20
AWAIT_SECONDS = 0.02
NOTE_BYTES = 4_000

Identity = tuple[int, int]


class Loss(Struct, frozen=True):
    """What a process found missing. `log` is the inode of the log that it restored."""

    at: Time
    text: str
    log: int = 0


class Files:
    """A database's files as this process has them open. Changed under the writer's lock, and read from anywhere."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._names = {ending: f"{path}{ending}" for ending in ALL}
        self._known: dict[str, Identity | None] = {}
        self._log: int | None = None

    def note(self) -> None:
        """Remember the files that SQLite has just opened. Does nothing until they are forgotten again."""
        if self._known:
            return
        try:
            self._log = os.open(self._named(LOG), os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._log = None
        known = {ending: _identity(name) for ending, name in self._names.items()}
        if self._log is not None:
            status = os.fstat(self._log)
            known[LOG] = (status.st_dev, status.st_ino)
        self._known = known

    def forget(self) -> None:
        """Forget the files: SQLite has closed them, and may open others next."""
        self._known = {}
        log, self._log = self._log, None
        if log is not None:
            os.close(log)

    def missing(self, endings: Sequence[str] = ALL) -> list[str]:
        """The names whose file no longer exists, or isn't the one that is open here; usually none."""
        known = self._known
        return [
            self._path.name + ending
            for ending in endings
            if known.get(ending) is not None and _identity(self._names[ending]) != known[ending]
        ]

    def await_log(self, seconds: float) -> None:
        """Wait for the log if it is missing although other processes have this database open. They need time to notice
        that it was removed: a new log, started before they restore it, would miss what is in the old one.
        """
        end = time.monotonic() + seconds
        while not self._named(LOG).exists() and _size(self._path) and time.monotonic() < end:
            time.sleep(AWAIT_SECONDS)

    def is_moved_away(self) -> bool:
        """Whether the database was renamed within its folder, and no other file has taken its place."""
        known = self._known.get("")
        if known is None or _identity(self._path) is not None:
            return False
        try:
            with os.scandir(self._path.parent) as entries:
                return any(entry.inode() == known[1] for entry in entries)
        except OSError:
            return False

    def put_back(self) -> int:
        """Restore a removed log under its name, and return its inode; 0 if there is nothing to do or it isn't possible.

        The caller holds SQLite's write lock, so that nobody writes to the removed log meanwhile. If another process has
        started a new log, it is never overwritten: the two can't be merged.
        """
        name, log = self._named(LOG), self._log
        if log is None or name.exists() or _identity(self._path) != self._known[""]:
            return 0
        copy = self._path.with_name(f"{name.name}.{os.getpid()}")
        try:
            _copy(log, copy)
            os.link(copy, name)
            made = os.stat(name).st_ino
        except OSError:
            return 0
        finally:
            copy.unlink(missing_ok=True)
        _sync(self._path.parent)
        return made

    def loss(self, missing: list[str], kept: bool) -> StoreLost:
        """The error about missing files. `kept` means that no acknowledged work is lost."""
        were = "was" if len(missing) == 1 else "were"
        what = f"{self._path}: {' and '.join(missing)} {were} removed or replaced while in use"
        if self._path.name in missing:
            now = "restore the database, or start with a new one; then restart this process"
        elif kept:
            now = "no acknowledged work is lost; restart this process"
        else:
            now = (
                f"work that was not yet in {self._path.name} may be lost: check the last jobs, then restart the process"
            )
        return StoreLost(f"{what}; this process has stopped writing: {now}")

    def is_log(self, number: int) -> bool:
        """Whether the log file is the one with this inode."""
        identity = _identity(self._named(LOG))
        return number != 0 and identity is not None and identity[1] == number

    def is_same_log(self) -> bool:
        """Whether the log file is the one that is open here."""
        return self._known.get(LOG) is not None and _identity(self._named(LOG)) == self._known[LOG]

    def _named(self, ending: str) -> Path:
        return self._path.with_name(self._path.name + ending)


def write_loss(folder: Path, loss: Loss) -> None:
    """Write down which files were found missing, for those who check later. A failure to do so is ignored."""
    try:
        make_live_folder(folder)
        (folder / NOTE).write_bytes(json.encode(loss))
    except OSError:
        pass


def read_loss(folder: Path) -> Loss | None:
    """The last note about missing files."""
    try:
        return json.decode((folder / NOTE).read_bytes()[:NOTE_BYTES], type=Loss)
    except (OSError, DecodeError):
        return None


def abandon(connection: sqlite3.Connection) -> None:
    """Leak a connection instead of closing it.

    The last connection to close a database copies the log into it and removes the log by name. If files were removed,
    that would overwrite newer writes of other processes with an old log, and remove their log.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))


def _identity(path: Path | str) -> Identity | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _copy(source: int, target: Path) -> None:
    made = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.fchmod(made, os.fstat(source).st_mode & 0o666)
        place = 0
        while part := os.pread(source, COPY_BYTES, place):
            place += os.pwrite(made, part, place)
        os.fsync(made)
    finally:
        os.close(made)


def _sync(folder: Path) -> None:
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
