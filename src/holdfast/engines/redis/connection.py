"""One connection to the server: commands are sent while answers are pending, and answered in order.

Must not know acts. Finishes the greeting (`store`) before it sends anything else, follows a cluster to the node that
has the store, and reconnects after an error, at the next call.
"""

import asyncio
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from hiredis import pack_command
from redis import exceptions as said
from redis.asyncio.connection import Connection, SSLConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import MovedError, NoScriptError, ReadOnlyError, RedisError

from holdfast.core.errors import StoreClosed
from holdfast.engines.redis.scripts import Script
from holdfast.engines.redis.url import StoreUrl

CONNECT_SECONDS = 10.0
CALL_SECONDS = 30.0
"""If an answer takes longer, its connection is given up: the network may have lost it."""

HANG_UP_SECONDS = 2.0

MOVES = 5
"""How often one call follows a store that moved to another node."""

KEEPALIVE = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}

_Answer = asyncio.Future[Any]
Node = tuple[str, int]


class Way:
    """Which node to ask: that of the URL, until a cluster names another."""

    def __init__(self, url: StoreUrl) -> None:
        self._home: Node = (url.host, url.port)
        self._last = self.to = self._home

    def follow(self, error: MovedError) -> None:
        """Note that the store is on this node."""
        self.to = (error.host or self.to[0], int(error.port))

    def start_over(self, gone: Node) -> None:
        """Note that a node can't be reached: use the URL's, or if that one is gone, the last one that had the store."""
        if gone == self.to:  # otherwise another call has noticed it already
            self.to, self._last = (self._last, gone) if gone == self._home else (self._home, gone)


class NotConnected(said.ConnectionError):
    """There is no connection, so nothing was sent."""


async def connect(url: StoreUrl, way: Way) -> Connection:
    """Return a connection that is logged in. The caller closes it."""
    options = {getattr(socket, name): seconds for name, seconds in KEEPALIVE.items() if hasattr(socket, name)}
    kind, node = SSLConnection if url.tls else Connection, way.to
    connection = kind(
        host=node[0],
        port=node[1],
        db=url.db,
        username=url.user,
        password=url.password,
        socket_connect_timeout=CONNECT_SECONDS,
        socket_timeout=None,
        socket_keepalive=True,
        socket_keepalive_options=options,
        client_name="holdfast",
        protocol=2,
        retry=Retry(NoBackoff(), 0),
        **(dict(url.options) if url.tls else {}),
    )
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            await connection.connect()  # type: ignore[no-untyped-call]
    except BaseException as error:
        way.start_over(node)
        await connection.disconnect(nowait=True)
        if isinstance(error, OSError | TimeoutError | said.TimeoutError) or type(error) is said.ConnectionError:
            raise NotConnected(str(error) or "no answer in time") from error
        raise
    return connection


class Wire:
    """A long-lived connection. Lives on the engine's own loop."""

    def __init__(self, url: StoreUrl, way: Way, greet: Callable[["Wire"], Awaitable[None]]) -> None:
        self._url = url
        self._way = way
        self._greet = greet
        self._connection: Connection | None = None
        self._greeted = False
        self._waiting: deque[_Answer] = deque()
        self._reader: asyncio.Task[None] | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._closed = False
        self.since = 0.0
        """When this connection was opened, by the loop's clock."""
        self.remade = False
        """Whether there was another one before it."""
        self.client = 0
        """The server's id of this connection."""
        self.calls = 0
        """How many commands were sent."""

    async def call(self, *words: Any) -> Any:
        """Send a command and wait for its answer."""
        for left in reversed(range(MOVES)):
            await self.connected()
            try:
                return await self._send(words)
            except MovedError as error:  # it was not executed
                if not left:
                    raise
                self._way.follow(error)
                self.cut(error)
            except ReadOnlyError as error:  # the node became a replica; it was not executed here either
                self._way.start_over(self._way.to)
                self.cut(error)
                raise
        raise AssertionError("not reached")

    async def run(self, script: Script, key: str, given: Callable[[], Sequence[Any]]) -> Any:
        """Run a script, with its text if the server doesn't know it yet. `given` returns its arguments at that time."""
        await self.connected()
        try:
            return await self.call("EVALSHA", script.sha, 1, key, *given())
        except NoScriptError:
            await self.connected()
            return await self.call("EVAL", script.text, 1, key, *given())

    async def connected(self) -> None:
        """Make sure that there is a connection and that it was greeted: before that, its server is unknown."""
        if self._greeted:
            return
        if self._closed:
            raise StoreClosed(f"{self._url.shown}: was closed; open it first")
        if self._connecting is None:  # callers that arrive meanwhile share the outcome
            self._connecting = asyncio.get_running_loop().create_task(self._follow())
            self._connecting.add_done_callback(self._connected)
        await asyncio.shield(self._connecting)

    def _connected(self, task: "asyncio.Task[None]") -> None:
        self._connecting = None
        if not task.cancelled():
            task.exception()  # mark it as seen: its caller may be gone

    async def _follow(self) -> None:
        """Connect to the node that has the store."""
        for left in reversed(range(MOVES)):
            try:
                await self._connect()
                return
            except MovedError as error:
                self._way.follow(error)
                if not left:
                    raise

    async def _connect(self) -> None:
        connection = await connect(self._url, self._way)
        reader = asyncio.get_running_loop().create_task(self._read(connection))
        self._waiting = deque()
        self._connection, self._reader = connection, reader
        try:
            self.remade, self.since = self.since > 0, asyncio.get_running_loop().time()
            self.client = int(await self._send(("CLIENT", "ID")))
            await self._greet(self)
            self._greeted = self._connection is connection
        except BaseException as error:
            self.cut(error)
            raise

    async def ask(self, *words: Any) -> Any:
        """Send a command on the connection as it is, for the greeting."""
        return await self._send(words)

    async def _send(self, words: Sequence[Any]) -> Any:
        connection = self._connection
        if connection is None:
            raise ConnectionError("the connection was lost")
        answer: _Answer = asyncio.get_running_loop().create_future()
        self._waiting.append(answer)
        self.calls += 1
        try:
            async with asyncio.timeout(CALL_SECONDS):
                await connection.send_packed_command(pack_command(tuple(words)), check_health=False)
                return await answer
        except (TimeoutError, RedisError, OSError) as error:
            if not answer.done() or answer.cancelled():
                self.cut(error)
            raise

    async def _read(self, connection: Connection) -> None:
        """Pass answers to their callers, in order, until the connection ends."""
        waiting = self._waiting
        try:
            while True:
                answer: Any
                try:
                    answer = await connection.read_response(disconnect_on_error=False)
                except RedisError as error:
                    if not _is_answer(error):
                        raise
                    answer = error
                waiting = self._waiting if connection is self._connection else waiting
                future = waiting.popleft()
                if future.done():
                    continue
                if isinstance(answer, Exception):
                    future.set_exception(answer)
                else:
                    future.set_result(answer)
        except BaseException as error:
            if connection is self._connection:
                self.cut(error)
            if not isinstance(error, Exception):
                raise

    def cut(self, error: BaseException) -> asyncio.StreamWriter | None:
        """Give the connection up. Callers that wait for an answer get the reason."""
        connection, self._connection = self._connection, None
        self._greeted = False
        reader, self._reader = self._reader, None
        waiting, self._waiting = self._waiting, deque()
        reason = error if isinstance(error, RedisError | OSError) else ConnectionError("the connection was lost")
        for future in waiting:
            if not future.done():
                future.set_exception(reason)
                future.exception()  # mark it as seen: its caller may be gone
        if reader is not None and reader is not asyncio.current_task():
            reader.cancel()
        return None if connection is None else close_writer(connection)

    async def close(self) -> None:
        """Close the connection permanently."""
        self._closed = True
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.wait([self._connecting], timeout=HANG_UP_SECONDS)
        reader = self._reader
        writer = self.cut(ConnectionError("closed"))
        if reader is not None:
            await asyncio.wait([reader], timeout=HANG_UP_SECONDS)
        if writer is not None:
            await wait_closed(writer)

    def sockets(self) -> list[Any]:
        """The sockets that a forked child must close: while one is open anywhere, our workers look alive."""
        return sockets_of(self._connection)


def _is_answer(error: RedisError) -> bool:
    """Whether the server said this, so that the connection still works."""
    return not isinstance(error, said.ConnectionError | said.TimeoutError) or isinstance(error, _SAID)


_SAID = (said.BusyLoadingError, said.AuthenticationError, said.AuthorizationError)


def close_writer(connection: Connection) -> asyncio.StreamWriter | None:
    """Close a connection without a goodbye. Its writer can be waited for."""
    writer: asyncio.StreamWriter | None = getattr(connection, "_writer", None)
    if writer is not None:
        writer.close()
        connection._reader = connection._writer = None
    return writer


async def wait_closed(writer: asyncio.StreamWriter) -> None:
    """Wait until a socket is really closed."""
    try:
        async with asyncio.timeout(HANG_UP_SECONDS):
            await writer.wait_closed()
    except (OSError, TimeoutError):
        pass


async def hang_up(connection: Connection) -> None:
    """Close a connection, and wait until it is closed."""
    writer = close_writer(connection)
    if writer is not None:
        await wait_closed(writer)


def sockets_of(connection: Connection | None) -> list[Any]:
    """The sockets of a connection."""
    writer = None if connection is None else getattr(connection, "_writer", None)
    wrapped = None if writer is None else writer.transport.get_extra_info("socket")
    found = getattr(wrapped, "_sock", None)
    return [] if found is None else [found]
