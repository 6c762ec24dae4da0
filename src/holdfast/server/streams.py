"""Server-Sent Events with bounds. A stream ends when its client goes, its token is revoked or the server stops.

Must not know what it sends. A client that stops reading is cut off; it comes back with `Last-Event-ID`.
"""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from holdfast.core.errors import HoldfastError, StoreError
from holdfast.server.auth import check_scope
from holdfast.server.call import Call
from holdfast.server.problems import Problem

STREAMS = 1_500
"""How many streams one server process serves at a time."""

HEARTBEAT_SECONDS = 15.0
"""A comment is sent this often while nothing happens, so that proxies keep the connection and a lost client is seen."""

TOKEN_SECONDS = 2.0
"""How often the token of an open stream is checked again."""

SEND_SECONDS = 20.0
"""How long a client may not read before it is cut off."""

WATCH_SECONDS = 0.25
"""How often to check whether the server that we are mounted in stops."""

_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


def event(value: Any, *, name: str = "", id: str | int | None = None) -> bytes:
    """Return one event as it is sent. The value becomes JSON on one line."""
    head = (f"event: {name}\n" if name else "") + ("" if id is None else f"id: {id}\n")
    return head.encode() + b"data: " + msgspec.json.encode(value) + b"\n\n"


class EventStream(Response):
    """An answer of Server-Sent Events. `events` gives them as `event` makes them; raises Problem if there are too many.

    If `events` ends, the stream does. It is closed in every case. `goodbye` is sent if the server stops.
    """

    def __init__(self, call: Call, events: AsyncIterator[bytes], *, goodbye: bytes = b"") -> None:
        if call.server.streams >= STREAMS:
            raise Problem(503, "too_many_streams", "this server has too many open streams; try again", retry_after=5)
        super().__init__(headers=_HEADERS, media_type="text/event-stream")
        del self.headers["content-length"]
        self._call, self._events, self._goodbye = call, events, goodbye

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events until one of the ends."""
        server = self._call.server
        server.streams += 1
        ends = [
            asyncio.create_task(_until_gone(receive)),
            asyncio.create_task(server.stopping.wait()),
            asyncio.create_task(self._until_revoked()),
            asyncio.create_task(_until_host_stops()),
        ]
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            if scope["method"] != "HEAD":
                await self._send_events(send, ends)
            if not ends[0].done():
                with suppress(TimeoutError):
                    await _send(send, self._goodbye if ends[1].done() else b"", more=False)
        except TimeoutError:  # the client doesn't read
            return
        finally:
            server.streams -= 1
            for task in ends:
                task.cancel()
            await asyncio.gather(*ends, return_exceptions=True)
            if (close := getattr(self._events, "aclose", None)) is not None:
                await close()

    async def _send_events(self, send: Send, ends: "list[asyncio.Task[Any]]") -> None:
        coming: asyncio.Future[bytes] | None = None
        try:
            while not any(task.done() for task in ends):
                if coming is None:
                    coming = asyncio.ensure_future(anext(self._events, b""))
                await asyncio.wait([coming, *ends], timeout=HEARTBEAT_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                if not coming.done():
                    await _send(send, b":heartbeat\n\n")
                    continue
                if not (chunk := coming.result()):
                    return
                coming = None
                await _send(send, chunk)
        finally:
            if coming is not None:
                coming.cancel()
                await asyncio.gather(coming, return_exceptions=True)

    async def _until_revoked(self) -> None:
        """Return once the token counts no more. A store that is away for a moment revokes nothing."""
        call = self._call
        while True:
            await asyncio.sleep(TOKEN_SECONDS)
            with suppress(StoreError):
                try:
                    principal = await call.server.auth.identify(call.jobs, call.headers, call.method)
                    check_scope(principal, call.needs)
                except StoreError:
                    raise
                except HoldfastError:
                    return


async def _send(send: Send, chunk: bytes, *, more: bool = True) -> None:
    async with asyncio.timeout(SEND_SECONDS):
        await send({"type": "http.response.body", "body": chunk, "more_body": more})


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _until_host_stops() -> None:
    """Return once a uvicorn that runs somebody else's application stops: it waits for our streams to end."""
    while True:
        host = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
        if getattr(host, "should_exit", False):
            return
        await asyncio.sleep(WATCH_SECONDS)
