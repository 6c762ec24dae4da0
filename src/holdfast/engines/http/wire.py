"""Asks a Holdfast server over HTTP, from blocking threads of its own. Must not know what is asked.

An error of the server becomes the error of ours that it was there.
"""

import asyncio
import http.client
import os
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from holdfast.core import errors
from holdfast.core.errors import Invalid, NotAllowed, Refused, StoreBusy, StoreError

THREADS = 16
"""How many requests one app makes at the same time."""

TIMEOUT_SECONDS = 30.0
"""How long one request may take."""

STREAM_SECONDS = 300.0
"""How long a server may take to store what was uploaded, and at most how long a download may pause."""

ANSWER_BYTES = 256 << 20
"""The largest answer that is read."""

AWAY = (502, 503, 504)
"""What a proxy answers while the server behind it is away."""

STALE = (http.client.RemoteDisconnected, http.client.BadStatusLine, ConnectionResetError, BrokenPipeError)
"""What a kept connection raises that the server has closed meanwhile."""

CODES: Mapping[str, type[errors.HoldfastError]] = {
    "invalid": errors.Invalid,
    "bad_value": errors.BadValue,
    "unknown_option": errors.UnknownOption,
    "refused": errors.Refused,
    "not_found": errors.NotFound,
    "not_allowed": errors.NotAllowed,
    "blob_gone": errors.BlobGone,
    "blobs_away": errors.BlobsAway,
    "lease_lost": errors.LeaseLost,
    "outrun": errors.Outrun,
    "key_conflict": errors.KeyConflict,
    "moved": errors.Moved,
    "store_full": errors.StoreFull,
    "store_lost": errors.StoreLost,
    "store_damaged": errors.StoreDamaged,
    "store_foreign": errors.StoreForeign,
    "forbidden": NotAllowed,
    "too_large": Invalid,
}


class _Problem(Struct):
    """What the server says about an error."""

    code: str = ""
    detail: str = ""
    existing_id: str = ""
    queue: str = ""
    depth: int = 0
    most_waiting: int = 0


class Wire:
    """The connections to one server. Safe from any thread and event loop."""

    def __init__(self, url: str, token: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.query:
            raise Invalid(f"{parts.scheme}://{parts.hostname or ''}: write a server's URL like http://127.0.0.1:8700")
        self.place = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"
        self._parts = parts
        self._headers = {"Content-Type": "application/json", "User-Agent": "holdfast"}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"
        self._idle: deque[http.client.HTTPConnection] = deque()
        self._threads: ThreadPoolExecutor | None = None
        self._pid = 0
        weakref.finalize(self, _close_all, self._idle)

    async def ask(self, method: str, path: str, body: Any = None, *, repeats: bool = False) -> bytes:
        """Make one request and return the answer's body. `repeats` if it can safely be sent twice."""
        if self._threads is None or self._pid != os.getpid():  # a forked child has none of its parent's threads
            self._threads, self._pid = ThreadPoolExecutor(THREADS, "holdfast-http"), os.getpid()
            self._idle.clear()
        raw = b"" if body is None else msgspec.json.encode(body)
        running = asyncio.get_running_loop().run_in_executor(self._threads, self._ask, method, path, raw, repeats)
        return await running

    @contextmanager
    def call(self, method: str, path: str, chunks: Iterable[bytes] | None = None) -> Iterator[http.client.HTTPResponse]:
        """Make one request in this thread, on a connection of its own, and stream its body and its answer."""
        connection = self._connect(STREAM_SECONDS)
        headers = {**self._headers, "Content-Type": "application/octet-stream"}
        if chunks is not None:
            headers["Transfer-Encoding"] = "chunked"
        try:
            try:
                connection.request(method, self._parts.path.rstrip("/") + path, chunks, headers, encode_chunked=True)
            except (BrokenPipeError, ConnectionResetError):
                if connection.sock is None:
                    raise
            answer = connection.getresponse()  # perhaps a refusal, before all was sent
            if answer.status >= 400 and method != "HEAD":
                raise self._error(answer, answer.read(ANSWER_BYTES))
            yield answer
        except (OSError, http.client.HTTPException) as error:
            raise self._away(error) from error
        finally:
            connection.close()

    def close(self) -> None:
        """Let the threads end."""
        threads, self._threads = self._threads, None
        if threads is not None and self._pid == os.getpid():
            threads.shutdown(wait=False, cancel_futures=True)
        _close_all(self._idle)

    def _ask(self, method: str, path: str, raw: bytes, repeats: bool) -> bytes:
        kept = self._take_idle() if repeats else None
        for connection in [kept, None] if kept is not None else [None]:
            fresh = connection or self._connect()
            try:
                fresh.request(method, self._parts.path.rstrip("/") + path, raw or None, self._headers)
                answer = fresh.getresponse()
                text = answer.read(ANSWER_BYTES)
            except STALE as error:
                fresh.close()
                if connection is None:
                    raise self._away(error) from error
                continue
            except (OSError, http.client.HTTPException) as error:
                fresh.close()
                raise self._away(error) from error
            if repeats and self._threads is not None:
                self._idle.append(fresh)
            else:
                fresh.close()
            if answer.status >= 400:
                raise self._error(answer, text)
            return text
        raise AssertionError("a fresh connection either answers or raises")

    def _take_idle(self) -> http.client.HTTPConnection | None:
        try:
            return self._idle.pop()
        except IndexError:
            return None

    def _connect(self, seconds: float = TIMEOUT_SECONDS) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self._parts.scheme == "https" else http.client.HTTPConnection
        return kind(self._parts.hostname or "", self._parts.port, timeout=seconds)

    def _away(self, error: BaseException) -> StoreBusy:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        return StoreBusy(f"{self.place}: the server can't be reached: {reason}; is holdfast serve running there?")

    def _error(self, answer: http.client.HTTPResponse, text: bytes) -> Exception:
        status = answer.status
        try:
            problem = msgspec.json.decode(text, type=_Problem)
        except msgspec.MsgspecError:
            if status in AWAY:
                return StoreBusy(f"{self.place}: the server is away: the proxy in front of it answered {status}")
            return StoreError(f"{self.place}: answered {status}, not as a Holdfast server does; check the URL")
        if problem.code == "duplicate":
            return errors.Duplicate(problem.detail, problem.existing_id)
        if problem.code == "queue_full":
            return errors.QueueFull(
                problem.detail,
                queue=problem.queue,
                depth=problem.depth,
                most_waiting=problem.most_waiting,
                retry_after=_seconds(answer.getheader("Retry-After")),
            )
        if status == 401:
            return NotAllowed(f"{self.place}: {problem.detail}; pass it as token= or in $HOLDFAST_TOKEN")
        kind = CODES.get(problem.code, StoreBusy if status == 503 else Refused)
        return kind(problem.detail)


def _close_all(idle: deque[http.client.HTTPConnection]) -> None:
    while idle:
        idle.pop().close()


def _seconds(header: str | None) -> float:
    """What a server's Retry-After says; a second if it says nothing that we can read."""
    return float(header) if header is not None and header.isdecimal() else 1.0
