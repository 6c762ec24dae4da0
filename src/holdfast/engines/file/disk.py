"""Disk access for the file engine: a small interface, the atomic replacement of a file, and the lock.

Must not know a file's content, and must not retry a failed fsync: the kernel may have dropped the pages and marked them
clean. Tests implement the interface with a disk that fails or loses power on demand.
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
"""The mode of a new file: only its owner can read it. An existing file keeps its mode."""

PID_LIMIT = 32
"""How many bytes of a lock file are read: enough for a process id."""


class Facts(Struct, frozen=True):
    """What distinguishes one version of a file from the next, and the owner and mode that the next one inherits."""

    inode: int
    size: int
    mtime_ns: int
    mode: int = stat.S_IFREG | PRIVATE
    uid: int = -1
    gid: int = -1

    def same_file(self, other: "Facts | None") -> bool:
        """Whether nobody has written or replaced the file since."""
        return other is not None and (self.inode, self.size, self.mtime_ns) == (other.inode, other.size, other.mtime_ns)


class Lock(Protocol):
    """An exclusive lock on a store. It ends with `release`, or with the process."""

    def renew(self) -> None:
        """Take the lock again if somebody removed its file. LockedBy if another process has it now."""

    def release(self) -> None:
        """Release the lock."""


class Disk(Protocol):
    """What the file engine needs from a disk. A failure is an OSError, which the caller translates."""

    def resolve(self, path: str) -> str:
        """The real file behind links."""

    def facts(self, path: str) -> Facts | None:
        """The facts of a path; None if it doesn't exist."""

    def writable(self, path: str) -> bool:
        """Whether this process has permission to write there."""

    def names(self, folder: str) -> list[str]:
        """The names in a folder."""

    def read(self, path: str) -> bytes:
        """The whole file."""

    def reopen(self, path: str) -> int:
        """Open an existing file, only to make it durable."""

    def create(self, path: str, like: Facts | None) -> int:
        """Create a file that must not exist yet, with the owner and mode of another."""

    def write(self, fd: int, data: bytes) -> None:
        """Write all of it."""

    def fsync(self, fd: int) -> None:
        """Make the file's content durable."""

    def close(self, fd: int) -> None:
        """Close the file."""

    def rename(self, source: str, target: str) -> None:
        """Replace `target` with `source` atomically."""

    def fsync_dir(self, folder: str) -> None:
        """Make the folder's names durable."""

    def remove(self, path: str) -> None:
        """Remove a file."""

    def lock(self, path: str) -> Lock:
        """Take the lock with this file without waiting, or raise LockedBy."""


class LockedBy(Exception):
    """Another process holds the lock: `pid`, or None if unknown."""

    def __init__(self, pid: int | None) -> None:
        super().__init__(f"held by process {pid}")
        self.pid = pid


class Unsettled(OSError):
    """The new file is in place, but a power cut may still bring the old one back."""


def write_new(disk: Disk, path: str, data: bytes, like: Facts | None) -> None:
    """Write a file that must not exist yet. Its content is durable, its name not yet. After an error it is removed."""
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
    """Replace the content of `path` durably and atomically: a reader always finds the old content or the new one.

    `temp` is an unused name in the same folder. After any error but Unsettled, the old file is unchanged.
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
    """Make an existing file durable, content and name, before anybody relies on its content."""
    fd = disk.reopen(path)
    try:
        disk.fsync(fd)
    finally:
        disk.close(fd)
    disk.fsync_dir(os.path.dirname(path))


def lock_name(path: str) -> str:
    """The lock file of a store."""
    return f"{path}.lock"


def holder(disk: Disk, path: str) -> tuple[int, int] | None:
    """The live process that has a store open, and since when (in ns), by its lock file; None if there is none.

    This doesn't try the lock: a process that opened the store at that moment would be refused.
    """
    lock = lock_name(path)
    facts = disk.facts(lock)
    pid = None if facts is None else _pid_in(disk.read(lock)[:PID_LIMIT])
    return None if facts is None or pid is None or not _lives(pid) else (pid, facts.mtime_ns)


def temp_name(path: str, n: int) -> str:
    """This process's n-th temporary name for a file that will replace `path`."""
    folder, name = os.path.split(path)
    return os.path.join(folder, f".{name}.{os.getpid()}-{n}.tmp")


def sweep(disk: Disk, path: str) -> None:
    """Remove temporary files that killed writers of `path` left behind. Call it under the lock."""
    folder, name = os.path.split(path)
    ours = re.compile(rf"\.{re.escape(name)}\.[0-9]+-[0-9]+\.tmp")
    for found in disk.names(folder):
        if ours.fullmatch(found):
            _discard(disk, os.path.join(folder, found))


def trouble(error: OSError, path: str) -> StoreError:
    """Translate an error while writing for the caller, in one line."""
    reason = os.strerror(error.errno) if error.errno else str(error)
    if isinstance(error, Unsettled):
        return StoreError(
            f"{path}: the disk failed at the end of a write ({reason}), which may or may not be stored; try again"
        )
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return StoreFull(f"{path}: no space to write it ({reason}); nothing was changed; free space, and try again")
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOENT, errno.ENOTDIR):
        return StoreUnwritable(
            f"{path}: can't be written ({reason}); nothing was changed; make its folder writable, and try again"
        )
    return StoreError(f"{path}: could not be written ({reason}); nothing was changed; check the disk, and try again")


def _discard(disk: Disk, path: str) -> None:
    with suppress(OSError):  # The file stays behind under a temporary name, and the next open removes it.
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
                    with suppress(PermissionError):  # Only root can change a file's owner; otherwise it is ours.
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
        """See Disk.fsync. macOS needs a special call to flush the drive's cache."""
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
        """See Disk.fsync_dir. A file system without this call answers EINVAL, and makes names durable by itself."""
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
    """A `flock` on a separate file that is never removed and contains the holder's process id.

    A forked child shares the lock with its parent. It must close its copy, so that the lock ends with the parent, and
    must never unlock it, because that would unlock the parent, too.
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
            with suppress(OSError):  # If the disk is full, the lock still works; it only doesn't say who holds it.
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
    except PermissionError:  # It is alive, and belongs to another user.
        return True
    except (ProcessLookupError, OverflowError):
        return False
    return pid > 0
