"""The disk as the file engine needs it: a seam of a few calls, the one way to replace a file whole, and the lock.

Must not know what a file says, and must not try a failed fsync again: the kernel may have dropped the pages and call
them clean. Tests put a disk of their own behind the seam, which fails when told to or loses power.
"""

import errno
import fcntl
import os
import re
import stat
from contextlib import suppress
from typing import Protocol

from msgspec import Struct

from holdfast import forking
from holdfast.core.errors import StoreError, StoreFull, StoreUnwritable

PRIVATE = 0o600
"""Who may read a new file: its owner only. A file that is there keeps the mode that somebody gave it."""

PID_LIMIT = 32
"""How many bytes of a lock file are read: a process id and no more."""


class Facts(Struct, frozen=True):
    """What tells one version of a file from the next, and what the next takes over from it."""

    inode: int
    size: int
    mtime_ns: int
    mode: int = stat.S_IFREG | PRIVATE
    uid: int = -1
    gid: int = -1

    def same_file(self, other: "Facts | None") -> bool:
        """Whether nobody has written or replaced the file in between."""
        return other is not None and (self.inode, self.size, self.mtime_ns) == (other.inode, other.size, other.mtime_ns)


class Lock(Protocol):
    """The sole right to a store, for as long as it is held or the process lives."""

    def renew(self) -> None:
        """Make sure of the right: somebody may have removed the lock's file. LockedBy, if it went to another."""

    def release(self) -> None:
        """Give the right up."""


class Disk(Protocol):
    """What the file engine asks of a disk. Trouble is an OSError; the caller says what it means."""

    def resolve(self, path: str) -> str:
        """The real file behind links."""

    def facts(self, path: str) -> Facts | None:
        """What is known of a path; None if nothing is there."""

    def writable(self, path: str) -> bool:
        """Whether this process may write there."""

    def names(self, folder: str) -> list[str]:
        """What a folder holds."""

    def read(self, path: str) -> bytes:
        """The whole file."""

    def reopen(self, path: str) -> int:
        """Open a file that is there, only to make it durable."""

    def create(self, path: str, like: Facts | None) -> int:
        """Open a file that must not be there yet, with the owner and mode of another."""

    def write(self, fd: int, data: bytes) -> None:
        """Write all of it."""

    def fsync(self, fd: int) -> None:
        """Make the file's content durable."""

    def close(self, fd: int) -> None:
        """Close the file."""

    def rename(self, source: str, target: str) -> None:
        """Let `source` take the place of `target`, in one step."""

    def fsync_dir(self, folder: str) -> None:
        """Make the folder's names durable."""

    def remove(self, path: str) -> None:
        """Remove a file."""

    def lock(self, path: str) -> Lock:
        """Take the lock whose file this is, at once, or raise LockedBy."""


class LockedBy(Exception):
    """Somebody else holds the lock: `pid`, or None where the lock doesn't tell."""

    def __init__(self, pid: int | None) -> None:
        super().__init__(f"held by process {pid}")
        self.pid = pid


class Unsettled(OSError):
    """The new file is in its place, but a power cut may still bring the old one back."""


def write_new(disk: Disk, path: str, data: bytes, like: Facts | None) -> None:
    """Write a file that must not be there yet, durable but for its name. What is half done is removed again."""
    fd = disk.create(path, like)
    try:
        try:
            disk.write(fd, data)
            disk.fsync(fd)
        finally:
            disk.close(fd)
    except BaseException:
        _discard(disk, path)
        raise


def replace_file(disk: Disk, path: str, temp: str, data: bytes) -> None:
    """Give `path` a new content, durable and in one step: whoever looks, whenever, finds the old one or the new.

    `temp` is a name in the same folder that nobody uses. After an error, but for Unsettled, the old file is as it was.
    """
    write_new(disk, temp, data, disk.facts(path))
    try:
        disk.rename(temp, path)
    except BaseException:
        _discard(disk, temp)
        raise
    try:
        disk.fsync_dir(os.path.dirname(path))
    except OSError as error:
        raise Unsettled(*error.args) from error


def settle(disk: Disk, path: str) -> None:
    """Make a file that somebody left there durable, content and name, before anybody is told what it says."""
    fd = disk.reopen(path)
    try:
        disk.fsync(fd)
    finally:
        disk.close(fd)
    disk.fsync_dir(os.path.dirname(path))


def lock_name(path: str) -> str:
    """The lock's file of a store."""
    return f"{path}.lock"


def holder(disk: Disk, path: str) -> tuple[int, int] | None:
    """Which process has a store open, and since when (in ns), as its lock's file tells it; None if none that lives.

    The lock itself is not tried: whoever opened the store at that moment would be refused.
    """
    lock = lock_name(path)
    facts = disk.facts(lock)
    pid = None if facts is None else _pid_in(disk.read(lock)[:PID_LIMIT])
    return None if facts is None or pid is None or not _lives(pid) else (pid, facts.mtime_ns)


def temp_name(path: str, n: int) -> str:
    """The n-th name of this process for a file that is to take the place of `path`."""
    folder, name = os.path.split(path)
    return os.path.join(folder, f".{name}.{os.getpid()}-{n}.tmp")


def sweep(disk: Disk, path: str) -> None:
    """Remove what writers of `path` left behind when they were killed. Call it under the lock."""
    folder, name = os.path.split(path)
    ours = re.compile(rf"\.{re.escape(name)}\.[0-9]+-[0-9]+\.tmp")
    for found in disk.names(folder):
        if ours.fullmatch(found):
            _discard(disk, os.path.join(folder, found))


def trouble(error: OSError, path: str) -> StoreError:
    """What an error while writing means to the caller, in one line."""
    reason = os.strerror(error.errno) if error.errno else str(error)
    if isinstance(error, Unsettled):
        return StoreError(
            f"{path}: the disk failed at the last moment ({reason}); a restart may find it done; try again"
        )
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return StoreFull(f"{path}: no room to write it ({reason}); nothing was changed; make room, then try again")
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOENT, errno.ENOTDIR):
        return StoreUnwritable(
            f"{path}: it can't be written ({reason}); nothing was changed; make its folder writable, then try again"
        )
    return StoreError(f"{path}: writing it failed ({reason}); nothing was changed; look at the disk, then try again")


def _discard(disk: Disk, path: str) -> None:
    with suppress(OSError):  # It stays behind under a name of ours, and the next open sweeps it away.
        disk.remove(path)


class RealDisk:
    """The machine's own disk."""

    def resolve(self, path: str) -> str:
        """See Disk.resolve."""
        return os.path.realpath(path)

    def facts(self, path: str) -> Facts | None:
        """See Disk.facts."""
        try:
            found = os.stat(path)
        except FileNotFoundError:
            return None
        return Facts(found.st_ino, found.st_size, found.st_mtime_ns, found.st_mode, found.st_uid, found.st_gid)

    def writable(self, path: str) -> bool:
        """See Disk.writable."""
        return os.access(path, os.W_OK)

    def names(self, folder: str) -> list[str]:
        """See Disk.names."""
        return os.listdir(folder)

    def read(self, path: str) -> bytes:
        """See Disk.read."""
        with open(path, "rb") as file:
            return file.read()

    def reopen(self, path: str) -> int:
        """See Disk.reopen."""
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def create(self, path: str, like: Facts | None) -> int:
        """See Disk.create."""
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, PRIVATE)
        try:
            if like is not None:
                if (like.uid, like.gid) != (os.geteuid(), os.getegid()):
                    with suppress(PermissionError):  # Only root may give a file away; ours it is, then.
                        os.fchown(fd, like.uid, like.gid)
                os.fchmod(fd, stat.S_IMODE(like.mode))
        except BaseException:
            os.close(fd)
            raise
        return fd

    def write(self, fd: int, data: bytes) -> None:
        """See Disk.write."""
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(fd, rest) :]

    def fsync(self, fd: int) -> None:
        """See Disk.fsync. macOS needs a call of its own to empty the drive's cache."""
        full = getattr(fcntl, "F_FULLFSYNC", None)
        if full is None:
            os.fsync(fd)
        else:
            fcntl.fcntl(fd, full)

    def close(self, fd: int) -> None:
        """See Disk.close."""
        os.close(fd)

    def rename(self, source: str, target: str) -> None:
        """See Disk.rename."""
        os.replace(source, target)

    def fsync_dir(self, folder: str) -> None:
        """See Disk.fsync_dir. A file system that has no such call says EINVAL, and orders names by itself."""
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
        finally:
            os.close(fd)

    def remove(self, path: str) -> None:
        """See Disk.remove."""
        os.unlink(path)

    def lock(self, path: str) -> "FileLock":
        """See Disk.lock."""
        return FileLock(path)


class FileLock:
    """`flock` on a file of its own that is never removed, with the holder's process id in it.

    A forked child shares the lock with its parent: it must close its copy, so that the lock ends with the parent, and
    must never unlock it, which would take it from the parent.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._fd = _flocked(path)

    def renew(self) -> None:
        """See Lock.renew."""
        held = os.fstat(self._fd)
        try:
            there = os.stat(self._path)
            if (there.st_dev, there.st_ino) == (held.st_dev, held.st_ino):
                return
        except FileNotFoundError:
            pass
        old, self._fd = self._fd, _flocked(self._path)
        forking.close(old)

    def release(self) -> None:
        """See Lock.release."""
        with suppress(OSError):
            os.ftruncate(self._fd, 0)
        fcntl.flock(self._fd, fcntl.LOCK_UN)
        forking.close(self._fd)


def _flocked(path: str) -> int:
    with forking.opening() as ours:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, PRIVATE)
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise LockedBy(_pid_in(os.pread(fd, PID_LIMIT, 0))) from None
            with suppress(OSError):  # A full disk: the lock holds all the same, it only doesn't say who has it.
                os.ftruncate(fd, 0)
                os.pwrite(fd, b"%d\n" % os.getpid(), 0)
        except BaseException:
            os.close(fd)
            raise
        ours.add(fd)
        return fd


def _pid_in(text: bytes) -> int | None:
    return int(text) if text.strip().isdigit() else None


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except PermissionError:  # It lives, and is another user's.
        return True
    except (ProcessLookupError, OverflowError):
        return False
    return pid > 0
