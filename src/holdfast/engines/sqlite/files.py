"""The files of a database under the names that others find them by, and what to do when somebody removed them.

Must not run a statement. SQLite goes on writing to a file that was unlinked: nobody else would ever see that work.
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

LOG, MEMORY = "-wal", "-shm"
"""What SQLite puts behind the database's name for its log, and for the memory that its processes share."""

DATABASE, BESIDE = ("",), (LOG, MEMORY)
ALL = (*DATABASE, *BESIDE)

NOTE = "lost"
"""The file in the folder of the living that says what was found missing."""

COPY_BYTES = 1 << 20
AWAIT_SECONDS = 0.02
NOTE_BYTES = 4_000

Identity = tuple[int, int]


class Loss(Struct, frozen=True):
    """What a process found missing. `log` is the log that it put back, by its number on the disk."""

    at: Time
    text: str
    log: int = 0


class Files:
    """A database's files as this process has them open. Used under the writer's lock, and for looking from anywhere."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._names = {ending: f"{path}{ending}" for ending in ALL}
        self._known: dict[str, Identity | None] = {}
        self._log: int | None = None

    def note(self) -> None:
        """Remember which files these are: SQLite has just opened them. Once, until they are forgotten."""
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
        """SQLite has closed them: what comes next may be others."""
        self._known = {}
        log, self._log = self._log, None
        if log is not None:
            os.close(log)

    def missing(self, endings: Sequence[str] = ALL) -> list[str]:
        """The names that lead nowhere, or to another file than the one that is open here; mostly none."""
        known = self._known
        return [
            self._path.name + ending
            for ending in endings
            if known.get(ending) is not None and _identity(self._names[ending]) != known[ending]
        ]

    def await_log(self, seconds: float) -> None:
        """Other processes have this database open, so there must be a log. If there is none, give them time to notice
        that it was removed: a new one, begun before they put it back, would leave out what is in the old one.
        """
        end = time.monotonic() + seconds
        while not self._named(LOG).exists() and _size(self._path) and time.monotonic() < end:
            time.sleep(AWAIT_SECONDS)

    def is_moved_away(self) -> bool:
        """Whether the database has another name in its folder for now, and nobody has put another one in its place."""
        known = self._known.get("")
        if known is None or _identity(self._path) is not None:
            return False
        try:
            with os.scandir(self._path.parent) as entries:
                return any(entry.inode() == known[1] for entry in entries)
        except OSError:
            return False

    def put_back(self) -> int:
        """Put the removed log back under its name, and answer with its number on the disk; 0 if there is nothing to do
        or it can't be done.

        The caller holds SQLite's write lock, so that nobody adds to the removed one meanwhile. A log that somebody
        began anew is never written over: then the two can't be brought together any more.
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
        """What to say of files that are missing. `kept` tells that all that was acknowledged is there."""
        were = "was" if len(missing) == 1 else "were"
        what = f"{self._path}: {' and '.join(missing)} {were} removed or replaced while in use"
        if self._path.name in missing:
            now = "put the database back, or begin with a new one; then restart this process"
        elif kept:
            now = "all that was acknowledged is there; restart this process"
        else:
            now = f"what was not in {self._path.name} yet may be lost: look at its last jobs, then restart this process"
        return StoreLost(f"{what}; this process writes nothing more: {now}")

    def is_log(self, number: int) -> bool:
        """Whether the log that stands under its name is the one with this number."""
        identity = _identity(self._named(LOG))
        return number != 0 and identity is not None and identity[1] == number

    def is_same_log(self) -> bool:
        """Whether the log that stands under its name is the one that is open here."""
        return self._known.get(LOG) is not None and _identity(self._named(LOG)) == self._known[LOG]

    def _named(self, ending: str) -> Path:
        return self._path.with_name(self._path.name + ending)


def write_loss(folder: Path, loss: Loss) -> None:
    """Leave a word on what was found missing, for who looks later. It must not matter whether this works."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        (folder / NOTE).write_bytes(json.encode(loss))
    except OSError:
        pass


def read_loss(folder: Path) -> Loss | None:
    """The last word on what was found missing."""
    try:
        return json.decode((folder / NOTE).read_bytes()[:NOTE_BYTES], type=Loss)
    except (OSError, DecodeError):
        return None


def abandon(connection: sqlite3.Connection) -> None:
    """Let go of a connection for good without closing it.

    The last one to close a database writes its log into it and removes the log by name. With removed files it would
    write an old log over what others wrote since, and remove theirs.
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
