"""`/metrics`, `/health` and `/ready` of a worker, in a thread of their own with an event loop of its own.

Must not harm the worker: it never raises there, and if its port is taken, the worker runs without metrics until the
port is free. It reads the store only when somebody asks, and not more often than `FRESH_SECONDS`.
"""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable

from holdfast.core.errors import HoldfastError
from holdfast.jobs.service import Jobs
from holdfast.safe_text import logger
from holdfast.telemetry.counters import Counters
from holdfast.telemetry.metrics import CONTENT_TYPE, STORE_UP, as_text, sample_lines
from holdfast.telemetry.store import store_lines

log = logger("holdfast.metrics")

FRESH_SECONDS = 5.0
"""How long the numbers of the store are kept. The numbers of this process are always new."""

STORE_SECONDS = 5.0
"""How long the store may take to answer. Prometheus itself waits 10 s by default."""

REQUEST_SECONDS = 5.0
"""How long a client may take to send its request."""

CLIENTS_LIMIT = 32
"""How many connections may be open. Further ones are closed at once."""

AGAIN_SECONDS = 10.0
"""How often a port that is taken is tried again."""

STOP_SECONDS = 2.0
"""How long a worker that stops waits for this thread."""

LINES_LIMIT = 100
"""How many header lines a request may have."""


class Listener:
    """Answers Prometheus. `say` prints one line for people when the port is taken."""

    def __init__(
        self,
        host: str,
        port: int,
        opening: Callable[[], Awaitable[Jobs]],
        counters: Counters,
        say: Callable[[str], None],
    ) -> None:
        self._host, self._port = host, port
        self._opening = opening
        self._counters = counters
        self._say = say
        self._clients = 0
        self._store: tuple[float, list[str]] = (-FRESH_SECONDS, [])
        self._loop = asyncio.new_event_loop()
        self._stopping = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="holdfast-metrics", daemon=True)

    def start(self) -> None:
        """Listen from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Listen no more. Waits briefly."""
        try:
            self._loop.call_soon_threadsafe(self._stopping.set)
        except RuntimeError:  # the thread has ended already
            return
        self._thread.join(STOP_SECONDS)

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        except Exception as error:
            log.error("this worker no longer serves metrics: %s: %s", type(error).__name__, error)
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        self._reading = asyncio.Lock()
        server = await self._listen()
        if server is None:
            return
        try:
            await self._stopping.wait()
        finally:
            server.close()

    async def _listen(self) -> asyncio.Server | None:
        """Return the server, once the port is free; None if the worker stops before."""
        has_said = False
        while not self._stopping.is_set():
            try:
                server = await asyncio.start_server(self._answer, self._host, self._port, limit=8_192)
            except (OSError, OverflowError) as error:
                if not has_said:
                    why = getattr(error, "strerror", None) or str(error)
                    place = f"{self._host}:{self._port}"
                    self._say(f"no metrics: can't listen on {place}: {why}; choose another --metrics-port")
                has_said = True
            else:
                if has_said:
                    log.info("metrics at http://%s:%d/metrics", self._host, self._port)
                return server
            try:
                async with asyncio.timeout(AGAIN_SECONDS):
                    await self._stopping.wait()
            except TimeoutError:
                pass
        return None

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._clients += 1
        try:
            if self._clients <= CLIENTS_LIMIT:
                async with asyncio.timeout(REQUEST_SECONDS):
                    path = await _path(reader)
                writer.write(await self._reply(path))
                async with asyncio.timeout(REQUEST_SECONDS):
                    await writer.drain()
        except (OSError, TimeoutError, ValueError) as error:  # a client that vanished, is slow, or speaks no HTTP
            log.debug("a request for metrics failed: %s", error)
        finally:
            self._clients -= 1
            writer.close()

    async def _reply(self, path: str) -> bytes:
        match path:
            case "/metrics":
                return _reply(200, as_text([*await self._store_lines(), *self._counters.lines()]))
            case "/health":
                return _reply(200, "ok\n")
            case "/ready":
                is_down = await self._store_lines() is DOWN
                return _reply(503, "the store does not answer\n") if is_down else _reply(200, "ready\n")
            case _:
                return _reply(404, "there is /metrics, /health and /ready\n")

    async def _store_lines(self) -> list[str]:
        """Return what the store holds, at most `FRESH_SECONDS` old. Requests at the same time share one read."""
        async with self._reading:
            read_at, lines = self._store
            if time.monotonic() - read_at < FRESH_SECONDS:
                return lines
            try:
                async with asyncio.timeout(STORE_SECONDS):
                    lines = await store_lines(await self._opening())
            except (HoldfastError, TimeoutError) as error:
                log.debug("the store gave no metrics: %s", error)
                lines = DOWN
            self._store = (time.monotonic(), lines)
            return lines


DOWN = sample_lines(STORE_UP, {(): 0})
"""What is shown instead while the store does not answer."""

REASONS = {200: "OK", 404: "Not Found", 503: "Service Unavailable"}


async def _path(reader: asyncio.StreamReader) -> str:
    """Read a request and return its path, or raise ValueError."""
    words = (await reader.readline()).split()
    if len(words) != 3 or words[0] not in (b"GET", b"HEAD"):
        raise ValueError("only GET is possible here")
    for _ in range(LINES_LIMIT):
        if (await reader.readline()) in (b"\r\n", b"\n", b""):
            break
    return words[1].decode("latin-1").partition("?")[0]


def _reply(status: int, text: str) -> bytes:
    body = text.encode()
    head = (
        f"HTTP/1.1 {status} {REASONS[status]}\r\nContent-Type: {CONTENT_TYPE}\r\nContent-Length: {len(body)}\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode() + body
