"""A shortcut for one insert at a time: on a connection of the caller's own loop or thread, past the engine's thread.

Must not report errors: whatever goes wrong here, the engine repeats the insert the usual way (`write_batches`), which
knows what the error means. Repeating is safe, because an insert is idempotent by the job's id.
"""

import asyncio
import socket
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from hiredis import HiredisError, Reader, pack_command

from holdfast import forking
from holdfast.engines.redis.connection import CONNECT_SECONDS, Way
from holdfast.engines.redis.scripts import script
from holdfast.engines.redis.store import Store
from holdfast.engines.redis.url import StoreUrl

WARM_UP_INSERTS = 16
"""A loop, or the blocking code of a process, gets a connection after this many inserts: most never submit so much."""

LOOPS = 4
"""How many event loops of a process can have their own connection."""

ANSWER_SECONDS = 5.0
"""How long an insert waits for its answer here before it goes the usual way."""

READ_BYTES = 65_536

CLIENT_NAME = "holdfast-submits"
"""The name of these connections in `CLIENT LIST`."""


class Direct(forking.Forkable):
    """The connections of one engine that belong to its callers: one for each busy loop, and one for blocking code."""

    def __init__(self, url: StoreUrl, way: Way, store: Store) -> None:
        self._url = url
        self._way = way
        self._store = store
        self._is_closed = False
        self._lock = threading.Lock()
        self._blocking = _Line(self._open)
        self._loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Line] = weakref.WeakKeyDictionary()
        forking.watch(self)

    async def insert(self, order: bytes) -> Any:
        """Run the insert script with one order; None if the caller must use the usual way.

        Where no loop runs, this blocks and never suspends.
        """
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return self._insert_blocking(order)
        line = self._loops.get(loop) or self._line_for(loop)
        connection = line.take()
        if connection is None:
            return None
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await loop.sock_sendall(connection.socket, self._pack(order))
                while (answer := connection.gets()) is False:
                    connection.feed(await loop.sock_recv(connection.socket, READ_BYTES))
        except (OSError, TimeoutError, HiredisError):
            line.drop(connection)
            return None
        except BaseException:
            line.drop(connection)
            raise
        return self._read(answer, line, connection)

    def _insert_blocking(self, order: bytes) -> Any:
        connection = self._blocking.take()
        if connection is None:
            return None
        try:
            connection.socket.settimeout(ANSWER_SECONDS)
            connection.socket.sendall(self._pack(order))
            while (answer := connection.gets()) is False:
                connection.feed(connection.socket.recv(READ_BYTES))
        except (OSError, HiredisError):
            self._blocking.drop(connection)
            return None
        except BaseException:
            self._blocking.drop(connection)
            raise
        return self._read(answer, self._blocking, connection)

    def _pack(self, order: bytes) -> bytes:
        words: tuple[Any, ...] = ("EVALSHA", script("insert").sha, 1, self._url.tag, *self._store.given(), order)
        packed: bytes = pack_command(words)
        return packed

    def _read(self, answer: Any, line: "_Line", connection: "_Connection") -> Any:
        """Return the answer for the one order. Errors, and a store that isn't the one we know, are left to the usual
        way.
        """
        if not isinstance(answer, list) or not isinstance(answer[0], int):
            line.drop(connection)
            return None
        line.give_back(connection)
        self._store.note_seq(answer[0])
        return answer[1]

    def _line_for(self, loop: asyncio.AbstractEventLoop) -> "_Line":
        with self._lock:
            line = self._loops[loop] = _Line(self._open if len(self._loops) < LOOPS else None)
        # A loop that ends without closing the App leaves its connection behind: it is closed with the loop.
        weakref.finalize(loop, line.close)
        return line

    def _lines(self) -> "list[_Line]":
        with self._lock:
            return [self._blocking, *self._loops.values()]

    def _open(self) -> "_Connection | None":
        if self._is_closed or self._url.tls:
            return None
        try:
            return _Connection(self._url, self._way.to)
        except (OSError, HiredisError):
            return None

    def close(self) -> None:
        """Close every connection. Callers go the usual way from here on, which tells them that the store is closed."""
        self._is_closed = True
        for line in self._lines():
            line.close()
        forking.forget(self)

    def leave_behind(self) -> None:
        """See Forkable. The child closes its copies of the parent's sockets; the parent keeps using them."""
        self._is_closed, self._lock = True, threading.Lock()
        for line in self._lines():
            line.leave_behind()


class _Line:
    """At most one connection, lent to one caller at a time. Opened on a thread, so that no caller waits for it."""

    def __init__(self, open: "Callable[[], _Connection | None] | None") -> None:
        self._open = open
        self._lock = threading.RLock()  # the collector may close it in a thread that holds it
        self._idle: _Connection | None = None
        self._lent: _Connection | None = None
        self._asked = 0

    def take(self) -> "_Connection | None":
        """Borrow the connection, if there is one and nobody uses it."""
        if self._open is None:
            return None
        with self._lock:
            connection, self._idle = self._idle, None
            if connection is not None:
                self._lent = connection
                return connection
            if self._lent is None:
                self._asked += 1
                if self._asked == WARM_UP_INSERTS:
                    threading.Thread(target=self._connect, name="holdfast-redis-open", daemon=True).start()
        return None

    def give_back(self, connection: "_Connection") -> None:
        """Return the connection after an answer."""
        with self._lock:
            if self._lent is connection:  # otherwise it was closed
                self._lent, self._idle = None, connection

    def drop(self, connection: "_Connection") -> None:
        """Close a connection that can't be trusted any more. Another one is opened after as many inserts again."""
        connection.close()
        with self._lock:
            if self._lent is connection:
                self._lent, self._asked = None, 0

    def close(self) -> None:
        """Close the connection, lent or not, and open no other."""
        with self._lock:
            self._open = None
            connections = [one for one in (self._idle, self._lent) if one is not None]
            self._idle = self._lent = None
        for connection in connections:
            connection.close()

    def leave_behind(self) -> None:
        """In a forked child: a thread that doesn't exist here may hold the lock."""
        self._lock = threading.RLock()
        self.close()

    def _connect(self) -> None:
        open = self._open
        connection = None if open is None else open()
        with self._lock:
            if connection is not None and self._open is not None:
                self._idle = connection
                return
            self._asked = 0
        if connection is not None:
            connection.close()


class _Connection:
    """A socket that is logged in, and the parser of its answers."""

    def __init__(self, url: StoreUrl, node: tuple[str, int]) -> None:
        self.socket = socket.create_connection(node, CONNECT_SECONDS)
        self._reader: Any = Reader()
        try:
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._log_in(url)
            self.socket.setblocking(False)
        except BaseException:
            self.close()
            raise

    def gets(self) -> Any:
        """The next answer, or False while it isn't complete."""
        return self._reader.gets()

    def feed(self, data: bytes) -> None:
        """Parse what was read."""
        if not data:
            raise ConnectionError("the server closed the connection")
        self._reader.feed(data)

    def close(self) -> None:
        """Close the socket."""
        with suppress(OSError):
            self.socket.close()

    def _log_in(self, url: StoreUrl) -> None:
        commands: list[tuple[Any, ...]] = [("CLIENT", "SETNAME", CLIENT_NAME)]
        if url.password is not None:
            commands.insert(0, ("AUTH", *([url.user] if url.user else []), url.password))
        if url.db:
            commands.append(("SELECT", url.db))
        deadline = time.monotonic() + CONNECT_SECONDS
        for command in commands:
            self.socket.sendall(pack_command(command))
            while (answer := self.gets()) is False:
                if time.monotonic() > deadline:
                    raise TimeoutError("no answer in time")
                self.feed(self.socket.recv(READ_BYTES))
            if isinstance(answer, Exception):
                raise answer
