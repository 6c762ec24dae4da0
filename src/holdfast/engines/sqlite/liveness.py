"""The liveness folder next to the database: one socket for each listening process, one file for each worker.

Wake-ups are Unix datagrams: no polling, no cost while idle. A worker's file holds its last heartbeat and is locked
(`flock`) as long as the worker lives; an unlocked file means that its worker died. Must not know the database.
"""

import errno
import fcntl
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path

import msgspec

from holdfast.core.model import Presence, Time
from holdfast.core.unreadable import presence_of
from holdfast.engines.live_folder import make_live_folder, open_live_file, share_socket
from holdfast.engines.wakeups import EVERYTHING
from holdfast.safe_text import logger

DATAGRAM_LIMIT = 16_384
"""Topics beyond this many bytes are sent as "everything"."""

LOCK_TRIES, LOCK_RETRY_SECONDS = 50, 0.005
"""How often and how long to retry a lock: an observer briefly holds a worker's lock to see whether it is free."""

RESEND_TRIES, RESEND_SECONDS = 400, 0.005
"""A listener whose queue is full (the system allows about ten datagrams) is retried for two seconds."""

SETTLED_NS = 100_000_000
"""A folder that changed this recently may change again with the same timestamp: file systems count time in ticks."""

READ_TRIES = 2
"""How often to read a heartbeat that can't be parsed: it may be being written."""

log = logger("holdfast.sqlite")


class Liveness:
    """This process's part of the liveness folder."""

    def __init__(self, folder: Path, heard: Callable[[Collection[str]], None]) -> None:
        self._folder = folder
        self._heard = heard
        self.lock = threading.Lock()
        """Held while sockets and files are opened or closed."""
        self._socket: socket.socket | None = None
        self._sender: socket.socket | None = None
        self._name = f"{os.getpid()}-{secrets.token_hex(4)}.sock"
        self._beats: dict[str, int] = {}
        self._unsent: dict[str, int] = {}
        self._directory: int | None = None
        self._others: list[str] = []
        self._others_at = 0
        """The folder's timestamp when `_others` were read; 0 if they must be read again."""

    # Wake-ups.

    def listen(self) -> bool:
        """Start to receive wake-ups from other processes; True if this call started it."""
        with self.lock:
            if self._socket is not None:
                return False
            make_live_folder(self._folder)
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            try:
                listener.bind(self._address(self._name))
                share_socket(self._folder / self._name)
            except OSError:
                listener.close()
                raise
            self._socket = listener
        threading.Thread(target=self._hear, args=(listener,), name="holdfast-wake", daemon=True).start()
        return True

    def tell(self, topics: Collection[str]) -> None:
        """Send a wake-up to every other listening process. A lost wake-up costs time, never correctness."""
        try:
            names = self._listeners()
        except OSError:
            return
        if not names:
            return
        message = "\n".join(topics).encode()
        if len(message) > DATAGRAM_LIMIT:
            message = EVERYTHING.encode()
        if self._sender is None:
            self._sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._sender.setblocking(False)
        for name in names:
            self._send(name, message)

    def _listeners(self) -> list[str]:
        """The sockets of other processes. The folder is read only when it has changed."""
        changed_at = os.stat(self._folder).st_mtime_ns
        if changed_at != self._others_at:
            self._others_at = changed_at if changed_at < time.time_ns() - SETTLED_NS else 0
            self._others = [name for name in os.listdir(self._folder) if name.endswith(".sock") and name != self._name]
        return self._others

    def _send(self, name: str, message: bytes) -> None:
        sender = self._sender
        if sender is None:
            return
        try:
            sender.sendto(message, self._address(name))
        except ConnectionRefusedError:  # Its process is dead: nobody else will remove the socket.
            self._unlink(name)
        except BlockingIOError:  # It is busy: send one wake-up for everything later.
            with self.lock:
                waiting = bool(self._unsent)
                self._unsent[name] = RESEND_TRIES
            if not waiting:
                threading.Thread(target=self._resend, name="holdfast-resend", daemon=True).start()
        except OSError:  # It has just ended.
            pass

    def _resend(self) -> None:
        """Wake busy listeners for all topics, as soon as their queue has room."""
        while True:
            time.sleep(RESEND_SECONDS)
            with self.lock:
                sender, names = self._sender, list(self._unsent)
                if sender is None or not names:
                    self._unsent.clear()
                    return
            for name in names:
                try:
                    sender.sendto(EVERYTHING.encode(), self._address(name))
                    done = True
                except BlockingIOError:
                    done = False
                except OSError:
                    done = True
                with self.lock:
                    left = self._unsent.get(name, 0) - 1
                    if done or left <= 0:
                        self._unsent.pop(name, None)
                    else:
                        self._unsent[name] = left

    def _hear(self, listener: socket.socket) -> None:
        while True:
            try:
                message = listener.recv(DATAGRAM_LIMIT)
            except OSError:
                return
            if not message:
                return
            self._heard(message.decode("utf-8", "replace").split("\n"))

    # Workers.

    def beat(self, presence: Presence) -> None:
        """Write a worker's heartbeat to its file; the first heartbeat locks the file."""
        self._mend()
        with self.lock:
            descriptor = self._beats.get(presence.worker)
            if descriptor is None:
                make_live_folder(self._folder)
                descriptor = self._beats[presence.worker] = _lock(self._folder / f"{presence.worker}.worker")
        text = msgspec.json.encode(presence)
        # A reader may see only a part of a longer text; it then reads again.
        os.pwrite(descriptor, text + b"\n", 0)
        os.ftruncate(descriptor, len(text) + 1)

    def _mend(self) -> None:
        """Restore what somebody removed from the folder: without its file, a worker looks as if it never existed."""
        with self.lock:
            gone = [worker for worker, descriptor in self._beats.items() if os.fstat(descriptor).st_nlink == 0]
            for worker in gone:
                os.close(self._beats.pop(worker))
            listener = self._socket
            if listener is not None and not os.path.lexists(self._folder / self._name):
                self._socket = None
                if self._directory is not None:
                    os.close(self._directory)
                    self._directory = None
            else:
                listener = None
        if listener is not None:
            _shut(listener)
            try:
                self.listen()
            except OSError:  # Waiters poll now and then by themselves.
                pass
            self._heard([EVERYTHING])
        if gone or listener is not None:
            log.warning("%s: files were removed from this folder while in use; they were created again", self._folder)

    def leave(self, worker: str) -> None:
        """Remove the file of a worker that has stopped normally."""
        with self.lock:
            descriptor = self._beats.pop(worker, None)
        if descriptor is not None:
            self._unlink(f"{worker}.worker")
            os.close(descriptor)

    def presences(self) -> list[Presence]:
        """All workers that have sent a heartbeat and have not left; dead ones are marked as gone."""
        found: list[Presence] = []
        try:
            names = sorted(name for name in os.listdir(self._folder) if name.endswith(".worker"))
        except FileNotFoundError:  # No worker has ever run here.
            return found
        for name in names:
            try:
                descriptor = os.open(self._folder / name, os.O_RDONLY | os.O_CLOEXEC)
            except PermissionError:  # A user who doesn't share the file: it counts as alive while it has heartbeats.
                found.append(Presence(name.removesuffix(".worker"), beat_at=_changed_at(self._folder / name)))
                continue
            except OSError:  # It has just left.
                continue
            try:
                gone = name.removesuffix(".worker") not in self._beats and _is_free(descriptor)
                presence = _read(descriptor, name.removesuffix(".worker"))
            finally:
                os.close(descriptor)
            found.append(msgspec.structs.replace(presence, gone=gone))
        return found

    def forget(self, workers: Collection[str]) -> None:
        """Remove the files of dead workers that hold no jobs."""
        for worker in workers:
            path = self._folder / f"{worker}.worker"
            try:
                descriptor = _lock(path)
            except OSError:
                continue
            path.unlink(missing_ok=True)
            os.close(descriptor)

    def close(self) -> None:
        """Stop listening, and close the files. Workers of this process that have not left look dead from now on."""
        with self.lock:
            listener, self._socket = self._socket, None
            beats, self._beats = self._beats, {}
        if listener is not None:
            _shut(listener)
            self._unlink(self._name)
        if self._sender is not None:
            self._sender.close()
            self._sender = None
        for descriptor in beats.values():
            os.close(descriptor)
        if self._directory is not None:
            os.close(self._directory)
            self._directory = None

    def forked(self) -> None:
        """In a forked child: close our copies, which keep the parent's lock alive. This object is not used again."""
        for descriptor in self._beats.values():
            os.close(descriptor)
        for kept in (self._socket, self._sender):
            if kept is not None:
                kept.close()
        if self._directory is not None:
            os.close(self._directory)

    def _address(self, name: str) -> str:
        """A socket's path. If it is longer than the system allows, it goes through an open folder."""
        path = str(self._folder / name)
        if len(path.encode()) <= 100:
            return path
        if self._directory is None:
            self._directory = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        return f"/proc/self/fd/{self._directory}/{name}"

    def _unlink(self, name: str) -> None:
        try:
            os.unlink(self._folder / name)
        except OSError:
            pass


def _shut(listener: socket.socket) -> None:
    try:
        listener.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
    listener.close()


def _lock(path: Path) -> int:
    """Open and lock a file; retry if it was removed in between, or if an observer held the lock."""
    for left in reversed(range(LOCK_TRIES)):
        descriptor = open_live_file(path)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                return descriptor
        except FileNotFoundError:
            pass
        except BlockingIOError:
            if not left:
                os.close(descriptor)
                raise
            time.sleep(LOCK_RETRY_SECONDS)
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
    raise OSError(errno.EAGAIN, "the file was removed repeatedly", str(path))


def _is_free(descriptor: int) -> bool:
    """Whether nobody holds the lock on this file: its worker is dead."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return False
        raise
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    return True


def _changed_at(path: Path) -> Time:
    try:
        return os.stat(path).st_mtime_ns // 1_000_000
    except OSError:
        return 0


def _read(descriptor: int, worker: str) -> Presence:
    for left in reversed(range(READ_TRIES)):
        text = os.pread(descriptor, max(1, os.fstat(descriptor).st_size), 0).split(b"\n", 1)[0]
        beat_at: Time = os.fstat(descriptor).st_mtime_ns // 1_000_000
        if not text:  # Its first heartbeat is about to be written.
            return Presence(worker, beat_at=beat_at)
        found = presence_of(text, worker, beat_at)
        if not found.unreadable or not left:
            break
    return found
