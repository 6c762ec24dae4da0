"""A way to a server that a test can disturb: cut, hold, delay, lose a request, or lose a reply after it was given.

Knows no protocol, so it is for every server. Lives on a thread and loop of its own; all of it may be called from any
thread. Must not be used without `with`: it closes what it opened.
"""

import asyncio
import contextlib
import socket
import ssl
import struct

from tests.support.relay import Relay

QUIET_SECONDS = 0.03
"""A reply is over when nothing more came for so long."""

CHUNK = 1 << 16
_RESET = struct.pack("ii", 1, 0)
_TLS_REQUEST = struct.pack("!II", 8, 80877103)
"""How a client of Postgres asks for TLS."""


class Way:
    """One connection through the proxy."""

    def __init__(self, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self._ends = (client, server)
        self.loses = asyncio.Event()

    def cut(self) -> None:
        """End it without a word, at both ends."""
        for end in self._ends:
            raw = end.get_extra_info("socket")
            if raw is not None:
                with contextlib.suppress(OSError):
                    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            end.transport.abort()


class Proxy(Relay):
    """Forwards to a port of this machine. With `tls`, clients must ask for TLS as those of Postgres do."""

    def __init__(self, port: int, tls: ssl.SSLContext | None = None) -> None:
        super().__init__()
        self._to = port
        self._tls = tls
        self._ways: set[Way] = set()
        self._flows: asyncio.Event
        self._trap: tuple[int, bool] | None = None
        self._closed = False
        self.delay = 0.0
        """How long each message takes longer, in either direction."""
        self.refuses = False
        """Whether new connections are turned away."""
        self.sprung = False
        """Whether the last trap was sprung."""

    def cut(self) -> int:
        """End all connections; how many there were."""

        async def cut() -> int:
            ways = list(self._ways)
            for way in ways:
                way.cut()
            return len(ways)

        return self.do(cut())

    def hold(self) -> None:
        """Let nothing through, while connections seem to be there: as when a cable is pulled."""
        self.do(self._set(flows=False))

    def release(self) -> None:
        """Let through again, with what was sent meanwhile."""
        self.do(self._set(flows=True))

    def lose_reply(self, nth: int = 1) -> None:
        """Forward the nth request from now, wait for its reply, and drop that with its connection."""
        self._arm((nth, True))

    def lose_request(self, nth: int = 1) -> None:
        """Drop the nth request from now with its connection."""
        self._arm((nth, False))

    def disarm(self) -> bool:
        """Take a trap away; whether it had been sprung."""
        self._trap = None
        return self.sprung

    def _arm(self, trap: tuple[int, bool]) -> None:
        self.sprung = False
        self._trap = trap

    async def listen(self) -> None:
        self._flows = asyncio.Event()
        self._flows.set()
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        self._closed = True
        self._server.close()
        for way in list(self._ways):
            way.cut()
        await asyncio.sleep(0)  # who was just accepted comes to know of it
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.sleep(0)  # sockets are let go of in the loop's next turn

    async def _set(self, *, flows: bool) -> None:
        (self._flows.set if flows else self._flows.clear)()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._connect(reader, writer)
        except (OSError, ssl.SSLError, asyncio.IncompleteReadError):
            pass
        except asyncio.CancelledError:
            if not self._closed:
                raise
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refuses or self._closed:
            return
        await self._flows.wait()
        if self._tls is not None:
            if await reader.readexactly(len(_TLS_REQUEST)) != _TLS_REQUEST:
                return
            writer.write(b"S")
            await writer.start_tls(self._tls)
        answers, asks = await asyncio.open_connection("127.0.0.1", self._to)
        way = Way(writer, asks)
        self._ways.add(way)
        pumps = [
            asyncio.ensure_future(self._requests(way, reader, asks)),
            asyncio.ensure_future(self._replies(way, answers, writer)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._ways.discard(way)
            asks.transport.abort()  # before the wait, in which this task may be cancelled
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    async def _requests(self, way: Way, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while chunk := await reader.read(CHUNK):
            await self._pass()
            if self._trap is not None:
                nth, with_reply = self._trap
                self._trap = (nth - 1, with_reply) if nth > 1 else None
                if nth == 1:
                    self.sprung = True
                    if not with_reply:
                        way.cut()
                        return
                    way.loses.set()
            writer.write(chunk)
            await writer.drain()

    async def _replies(self, way: Way, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while chunk := await reader.read(CHUNK):
            if way.loses.is_set():
                with contextlib.suppress(TimeoutError):
                    while chunk:
                        chunk = await asyncio.wait_for(reader.read(CHUNK), QUIET_SECONDS)
                way.cut()
                return
            await self._pass()
            writer.write(chunk)
            await writer.drain()

    async def _pass(self) -> None:
        await self._flows.wait()
        if self.delay:
            await asyncio.sleep(self.delay)
