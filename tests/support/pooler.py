"""A transaction pooler before a Postgres, as PgBouncer is one: a client has a session only for one transaction.

Many clients share a few sessions, and each transaction gets any of them, so that whatever a client leaves in a session
(a setting, a prepared statement, a lock, a subscription) is not there when it comes again, but another one's is. Like
PgBouncer it takes no start-up settings that it doesn't know. Lives on a thread and loop of its own.
"""

import asyncio
import random
import struct

from tests.support.relay import Relay

STARTUP, TLS_REQUEST, CANCEL_REQUEST = 196608, 80877103, 80877102
KNOWN = frozenset({"user", "database", "client_encoding", "application_name", "datestyle", "timezone"})
"""The start-up parameters that are taken."""

Asked = asyncio.Future[tuple[bytes, bytes]]
_HEAD = struct.Struct("!cI")
_AUTHENTICATED = b"R" + struct.pack("!II", 8, 0)
_READY = b"Z" + struct.pack("!I", 5) + b"I"


class Session:
    """One session at the server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.greeting = b""
        """What the server tells a client at the start: its version, its encoding, …"""
        self.transactions = 0


async def message(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """The next message: its kind, and all of it."""
    head = await reader.readexactly(_HEAD.size)
    kind, size = _HEAD.unpack(head)
    return kind, head + await reader.readexactly(size - 4)


class Pooler(Relay):
    """Forwards to a port of this machine, by way of so many sessions."""

    def __init__(self, port: int, sessions: int, user: str = "postgres", database: str = "postgres") -> None:
        super().__init__()
        self._to, self._number, self._as = port, sessions, (user, database)
        self._free: list[Session] = []
        self._is_free: asyncio.Condition
        self._chance = random.Random(3)
        self.sessions: list[Session] = []
        self.clients = 0

    async def listen(self) -> None:
        self._is_free = asyncio.Condition()
        self.sessions = [await self._begin() for _ in range(self._number)]
        self._free = list(self.sessions)
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for session in self.sessions:
            session.writer.transport.abort()

    async def _begin(self) -> Session:
        session = Session(*await asyncio.open_connection("127.0.0.1", self._to))
        user, database = self._as
        words = b"".join(f"{word}\0".encode() for word in ("user", user, "database", database)) + b"\0"
        session.writer.write(struct.pack("!II", 8 + len(words), STARTUP) + words)
        while True:
            kind, whole = await message(session.reader)
            assert kind != b"E", whole
            if kind == b"S":
                session.greeting += whole
            if kind == b"Z":
                return session

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            if await self._greet(reader, writer):
                self.clients += 1
                asked: Asked = asyncio.ensure_future(message(reader))
                while True:
                    asked = await self._transaction(asked, reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        while True:
            size, code = struct.unpack("!II", await reader.readexactly(8))
            rest = await reader.readexactly(size - 8)
            if code == TLS_REQUEST:
                writer.write(b"N")
                continue
            if code == CANCEL_REQUEST:
                return False
            names = {name.decode().lower() for name in rest.rstrip(b"\0").split(b"\0")[::2]}
            if names - KNOWN:
                text = (
                    f"SFATAL\0VFATAL\0C08P01\0Munsupported startup parameter: {sorted(names - KNOWN)[0]}\0\0".encode()
                )
                writer.write(b"E" + struct.pack("!I", 4 + len(text)) + text)
                await writer.drain()
                return False
            key = b"K" + struct.pack("!III", 12, 1, 1)
            writer.write(_AUTHENTICATED + self.sessions[0].greeting + key + _READY)
            return True

    async def _transaction(self, asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Asked:
        """Lend a session to a client until the server says that no transaction is open; what it asks for next."""
        kind, whole = await asked
        if kind == b"X":
            raise asyncio.IncompleteReadError(b"", None)
        async with self._is_free:
            await self._is_free.wait_for(lambda: self._free)
            session = self._free.pop(self._chance.randrange(len(self._free)))
        session.transactions += 1
        owed = 0
        try:
            incoming = asyncio.ensure_future(message(session.reader))
            while True:
                if whole:
                    owed += kind in (b"S", b"Q")
                    session.writer.write(whole)
                    whole = b""
                    asked = asyncio.ensure_future(message(reader))
                await asyncio.wait({asked, incoming}, return_when=asyncio.FIRST_COMPLETED)
                if incoming.done():
                    said, text = incoming.result()
                    writer.write(text)
                    if said == b"Z":
                        owed -= 1
                        if not owed and text[-1:] == b"I" and not asked.done():
                            return asked
                    incoming = asyncio.ensure_future(message(session.reader))
                if asked.done():
                    kind, whole = asked.result()
                    if kind == b"X":
                        raise asyncio.IncompleteReadError(b"", None)
        except BaseException:
            incoming.cancel()
            asked.cancel()
            session.writer.transport.abort()  # a client that is gone in the middle takes its transaction with it
            fresh = await self._begin()
            fresh.transactions = session.transactions
            self.sessions[self.sessions.index(session)] = fresh
            session = fresh
            raise
        finally:
            async with self._is_free:
                self._free.append(session)
                self._is_free.notify()
