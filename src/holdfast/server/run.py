"""Runs the application with uvicorn, with limits for slow and greedy clients. Must not know a route or an App."""

import asyncio
import contextlib
import os
import socket
import stat
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from holdfast.server.app import Server
from holdfast.server.bodies import HEAD_BYTES
from holdfast.server.origins import UNIX
from holdfast.server.site import GRACE_SECONDS

HEADER_SECONDS = 10.0
"""How long the head of a request may take to arrive."""

WRITE_SECONDS = 30.0
"""How long a client may not read before its connection is cut."""

KEEP_ALIVE_SECONDS = 30
"""How long an idle connection stays open."""

CONNECTIONS = 2_000
"""How many connections one process serves; further ones get 503."""


class Protocol(H11Protocol):
    """One connection: closed if a head takes too long to arrive, or an answer too long to be read."""

    _head: asyncio.TimerHandle | None = None
    _write: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        super().connection_made(transport)  # type: ignore[arg-type]
        self._time_head()

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        super().data_received(data)
        self._time_head()

    def on_response_complete(self) -> None:
        """See H11Protocol. A next head that has begun already may not take as long as an idle connection."""
        super().on_response_complete()
        if self.conn.trailing_data[0]:
            self._unset_keepalive_if_required()
            self._time_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        self._untime_head()
        self._untime_write()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """See asyncio.Protocol: the client reads more slowly than we write."""
        super().pause_writing()
        self._write = self._write or self.loop.call_later(WRITE_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        """See asyncio.Protocol."""
        self._untime_write()
        super().resume_writing()

    def _time_head(self) -> None:
        """Time a head that has begun to arrive, from its first byte or from the connection on."""
        if self.cycle is not None and not self.cycle.response_complete:
            self._untime_head()
        elif self._head is None and self.timeout_keep_alive_task is None:
            self._head = self.loop.call_later(HEADER_SECONDS, self._end_slow_head)

    def _untime_head(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None

    def _untime_write(self) -> None:
        if self._write is not None:
            self._write.cancel()
            self._write = None

    def _end_slow_head(self) -> None:
        self._head = None
        if self.cycle is None or self.cycle.response_complete:
            self.transport.abort()


class Uvicorn(uvicorn.Server):
    """uvicorn that tells the application when it begins to stop, so that streams end."""

    def __init__(self, config: uvicorn.Config, server: Server, started: Callable[[], None]) -> None:
        super().__init__(config)
        self._app, self._started = server, started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and say so."""
        await super().startup(sockets)
        if not self.should_exit:
            self._started()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop: no new connection, no new request, streams end, open requests may finish."""
        self._app.stopping.set()
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals to whoever runs this."""
        yield


def uvicorn_for(server: Server, started: Callable[[], None] = lambda: None) -> Uvicorn:
    """Return a uvicorn for this application: `await it.serve(sockets=[…])`; `it.should_exit = True` stops it."""
    options: dict[str, Any] = {
        "http": Protocol,
        "ws": "none",
        "lifespan": "on",
        "log_config": None,
        "log_level": "warning",
        "access_log": False,
        "proxy_headers": False,
        "server_header": False,
        "limit_concurrency": CONNECTIONS,
        "timeout_keep_alive": KEEP_ALIVE_SECONDS,
        "timeout_graceful_shutdown": GRACE_SECONDS,
        "h11_max_incomplete_event_size": HEAD_BYTES,
    }
    return Uvicorn(uvicorn.Config(server, **options), server, started)


def bind(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0 takes a free one, `unix:PATH` is for this user alone. Raises OSError."""
    if host.startswith(UNIX):
        return _bind_path(host.removeprefix(UNIX))
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(1_024)
    except BaseException:
        listener.close()
        raise
    return listener


def _bind_path(path: str) -> socket.socket:
    """Listen on a Unix socket that only this user can connect to. One that nobody listens on any more makes way."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if _is_left_over(path):
            os.unlink(path)
        before = os.umask(0o177)
        try:
            listener.bind(path)
        finally:
            os.umask(before)
        listener.listen(1_024)
    except BaseException:
        listener.close()
        raise
    return listener


def _is_left_over(path: str) -> bool:
    """Whether there is a socket at this path that no process listens on."""
    try:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            return False
    except FileNotFoundError:
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.settimeout(HEADER_SECONDS)
        try:
            asking.connect(path)
        except ConnectionRefusedError:
            return True
    return False
