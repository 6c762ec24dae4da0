"""Disks for tests: one that fails when told to, and one that is only imagined and can lose power.

`SimDisk` keeps apart what programs see and what would survive. A file's content survives from its fsync on, a name
from its folder's fsync on; before that any part may be there or not. `images` makes every disk that a power cut at
some moment may leave behind.
"""

import errno
import itertools
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from holdfast.engines.file.disk import Facts, LockedBy, RealDisk

FOLDER = "/store"
PATH = f"{FOLDER}/checkpoint.json"

PARTS = 8
"""A content that is not durable may be torn at so many places."""


class Faulty(RealDisk):
    """The real disk, with trouble: `trouble["fsync"] = EIO` makes every fsync fail until it is taken away."""

    def __init__(self) -> None:
        self.trouble: dict[str, int] = {}
        self.calls: list[str] = []
        self.readonly = False

    def _call(self, name: str) -> None:
        self.calls.append(name)
        if name in self.trouble:
            raise OSError(self.trouble[name], os.strerror(self.trouble[name]))

    def create(self, path: str, like: Facts | None) -> int:
        self._call("create")
        return super().create(path, like)

    def write(self, fd: int, data: bytes) -> None:
        if "write" in self.trouble:  # As a full disk does it: some of it is written.
            super().write(fd, data[: len(data) // 2])
        self._call("write")
        super().write(fd, data)

    def fsync(self, fd: int) -> None:
        self._call("fsync")
        super().fsync(fd)

    def rename(self, source: str, target: str) -> None:
        self._call("rename")
        super().rename(source, target)

    def fsync_dir(self, folder: str) -> None:
        self._call("fsync_dir")
        super().fsync_dir(folder)

    def remove(self, path: str) -> None:
        self._call("remove")
        super().remove(path)

    def read(self, path: str) -> bytes:
        self._call("read")
        return super().read(path)

    def writable(self, path: str) -> bool:
        return not self.readonly and super().writable(path)


@dataclass(frozen=True)
class Name:
    """A change of a folder that is not durable yet: `name` now stands for `inode`, or for nothing."""

    name: str
    inode: int | None
    gone: str | None = None
    """The name that a rename takes away in the same step."""


@dataclass
class Moment:
    """All that decides what a power cut would leave behind, at one moment of a run."""

    after: str
    acknowledged: int
    contents: Mapping[int, bytes]
    synced: Mapping[int, bytes | None]
    names: Mapping[str, int]
    pending: tuple[Name, ...]


class SimDisk:
    """A disk with one folder. `moments` has one for every call that changed anything."""

    def __init__(self, image: Mapping[str, bytes] | None = None) -> None:
        """A disk after a power cut, when the machine is up again: what it has is durable."""
        start = dict(enumerate((image or {}).items(), start=1))
        self.files = {name: inode for inode, (name, _) in start.items()}
        self.contents = {inode: data for inode, (_, data) in start.items()}
        self.trouble: dict[str, int] = {}
        self.moments: list[Moment] = []
        self.written: list[bytes] = []
        """Every content that the checkpoint had, in order."""
        self.acknowledged = 0
        """How many of those a caller was told of."""
        self._synced: dict[int, bytes | None] = dict(self.contents)
        self._durable = dict(self.files)
        self._pending: list[Name] = []
        self._open: set[int] = set()
        self._dropped: set[int] = set()
        self.locked = False
        self._note("the start")

    def _fail(self, name: str) -> None:
        if name in self.trouble:
            raise OSError(self.trouble[name], os.strerror(self.trouble[name]))

    def _note(self, after: str) -> None:
        pending = tuple(self._pending)
        moment = Moment(after, self.acknowledged, dict(self.contents), dict(self._synced), dict(self._durable), pending)
        self.moments.append(moment)

    def acknowledge(self) -> None:
        """A caller was told that what the checkpoint says now is durable."""
        self.acknowledged = len(self.written)
        self._note("the answer")

    # The seam.

    def resolve(self, path: str) -> str:
        return path

    def facts(self, path: str) -> Facts | None:
        if path == FOLDER:
            return Facts(0, 0, 0, stat.S_IFDIR | 0o700)
        inode = self.files.get(path)
        return None if inode is None else Facts(inode, len(self.contents[inode]), inode)

    def writable(self, path: str) -> bool:
        return True

    def names(self, folder: str) -> list[str]:
        return [os.path.basename(name) for name in self.files]

    def read(self, path: str) -> bytes:
        return self.contents[self.files[path]]

    def reopen(self, path: str) -> int:
        self._open.add(self.files[path])
        return self.files[path]

    def create(self, path: str, like: Facts | None) -> int:
        self._fail("create")
        if path in self.files:
            raise FileExistsError(errno.EEXIST, "there already")
        inode = max(self.contents, default=0) + 1
        self.files[path], self.contents[inode], self._synced[inode] = inode, b"", None
        self._pending.append(Name(path, inode))
        self._open.add(inode)
        self._note("create")
        return inode

    def write(self, fd: int, data: bytes) -> None:
        self._fail("write")
        self.contents[fd] += data
        self._note("write")

    def fsync(self, fd: int) -> None:
        assert fd in self._open
        inode = fd
        try:
            self._fail("fsync")
        except OSError:
            # What a kernel does: the pages are dropped and count as clean, so that the next fsync finds nothing to do.
            self._dropped.add(inode)
            raise
        if inode not in self._dropped:
            self._synced[inode] = self.contents[inode]
        self._note("fsync")

    def close(self, fd: int) -> None:
        self._open.remove(fd)

    def rename(self, source: str, target: str) -> None:
        self._fail("rename")
        inode = self.files.pop(source)
        self.files[target] = inode
        self._pending.append(Name(target, inode, gone=source))
        if target == PATH:
            self.written.append(self.contents[inode])
        self._note("rename")

    def fsync_dir(self, folder: str) -> None:
        self._fail("fsync_dir")
        self._durable = dict(self.files)
        self._pending.clear()
        self._note("fsync_dir")

    def remove(self, path: str) -> None:
        del self.files[path]
        self._pending.append(Name(path, None))
        self._note("remove")

    def lock(self, path: str) -> "SimDisk":
        if self.locked:
            raise LockedBy(None)
        self.locked = True
        return self

    def renew(self) -> None:
        assert self.locked

    def release(self) -> None:
        self.locked = False


def images(moment: Moment) -> Iterator[dict[str, bytes]]:
    """Every disk that a power cut at this moment may leave: each name that isn't durable, or not; each torn content."""
    for chosen in itertools.product((False, True), repeat=len(moment.pending)):
        names = dict(moment.names)
        for change, happened in zip(moment.pending, chosen, strict=True):
            if happened:
                names.pop(change.gone or "", None)
                if change.inode is None:
                    names.pop(change.name, None)
                else:
                    names[change.name] = change.inode
        found = sorted(names)
        for contents in itertools.product(*(survivors(moment, names[name]) for name in found)):
            yield dict(zip(found, contents, strict=True))


def survivors(moment: Moment, inode: int) -> list[bytes]:
    """What may be left of a file: all of it once it was synced; before that nothing, a part, zeros, or all."""
    synced, data = moment.synced[inode], moment.contents[inode]
    if synced == data:
        return [data]
    torn = {data[: len(data) * part // PARTS] for part in range(PARTS + 1)} | {data[:1], data[:-1]}
    zeros = {bytes(len(data)), data[: len(data) // 2] + bytes(len(data) - len(data) // 2)}
    return sorted(torn | zeros)
