"""A fake provider that speaks real HTTP on this machine. It can be slow, busy, broken or hang, and counts its calls.

Must not know about jobs: what happened twice is for the called side to say. It keeps the first answer to each
`Idempotency-Key`, as payment providers do.
"""

import hashlib
import json
import socket
import socketserver
import threading
import time
from collections import deque
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from typing import Any, Self

from msgspec import Struct

from holdfast.core.errors import Invalid

BODY_LIMIT = 16 << 20
"""The largest request body, in bytes."""

HANG_SECONDS = 600.0
"""How long a hanging call is held at most, unless the provider stops earlier."""

BUSY, FAIL, HANG, DROP = "busy", "fail", "hang", "drop"


class Call(Struct):
    """One call as the provider saw it. `status` is 0 while the call runs, and if it was never answered."""

    path: str
    body: Any
    key: str | None
    began_at: float
    """Seconds since 1970."""
    status: int = 0
    ended_at: float | None = None
    effect: bool = False
    """Whether this call had an effect: not if it was refused, or if its key had been used before."""


class _Trouble(Struct, frozen=True):
    kind: str
    status: int = 0
    retry_after: float | None = None
    after_effect: bool = False


class _Kept(Struct):
    """What is known about a key: its first call, and the answer once there is one."""

    call: Call
    answer: Any = None
    done: bool = False


class Provider:
    """A provider to test against: `with Provider() as provider:`, then POST to `provider.url`.

    Each call takes `seconds`, has one effect, and gets status 200 with JSON: the return value of `answer(call)`, by
    default `{"id": …}`, which is the same for the same path and body. A call with the `Idempotency-Key` of an earlier
    call gets that call's answer and has no second effect. It gets 409 while the earlier call still runs, and 400 if
    the body differs.
    """

    def __init__(self, *, seconds: float = 0.0, answer: Callable[[Call], Any] | None = None) -> None:
        self.seconds = seconds
        """How long each call takes. You can change it at any time."""
        self.calls: list[Call] = []
        """All calls, in the order in which they started."""
        self._answer = answer or _made
        self._troubles: deque[_Trouble] = deque()
        self._kept: dict[str, _Kept] = {}
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self._server = _Server(self)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._server is not None
        assert self._thread is not None
        self._stopped.set()
        self._server.shutdown()
        self._thread.join()
        self._server.hang_up()
        self._server.server_close()

    @property
    def url(self) -> str:
        """The URL it listens on, without a trailing slash."""
        if self._server is None:
            raise Invalid("this Provider isn't running; use it as `with Provider() as provider:`")
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def effects(self) -> list[Call]:
        """The calls that had an effect; without repeated calls under a known key, and without refused calls."""
        with self._lock:
            return [call for call in self.calls if call.effect]

    @property
    def begun(self) -> int:
        """How many calls have started."""
        return len(self.calls)

    @property
    def finished(self) -> int:
        """How many calls are over, answered or cut off."""
        with self._lock:
            return sum(call.ended_at is not None for call in self.calls)

    # What happens to the next calls, in the order in which a test asked for it.

    def busy(self, times: int = 1, *, retry_after: float | None = 1) -> None:
        """Refuse calls with status 429 and a Retry-After header."""
        self._meet(times, _Trouble(BUSY, 429, retry_after))

    def fail(self, times: int = 1, *, status: int = 500) -> None:
        """Fail calls with this status, before they have an effect."""
        self._meet(times, _Trouble(FAIL, status))

    def hang(self, times: int = 1) -> None:
        """Accept calls, but have no effect and don't answer until the provider stops."""
        self._meet(times, _Trouble(HANG))

    def drop(self, times: int = 1, *, after_effect: bool = False) -> None:
        """Break the connection instead of answering, before or after the effect: the caller can't tell which."""
        self._meet(times, _Trouble(DROP, after_effect=after_effect))

    def _meet(self, times: int, trouble: _Trouble) -> None:
        with self._lock:
            self._troubles.extend([trouble] * times)

    # Answering, in the thread of the connection.

    def _begin(self, path: str, body: Any, key: str | None) -> tuple[Call, _Trouble | None, _Kept | None]:
        """Note a call; return what should go wrong with it, and the earlier call with the same key."""
        with self._lock:
            call = Call(path, body, key, time.time())
            self.calls.append(call)
            trouble = self._troubles.popleft() if self._troubles else None
            kept = None if key is None else self._kept.get(key)
            if key is not None and kept is None and not _is_refusal(trouble):
                self._kept[key] = _Kept(call)
            return call, trouble, kept

    def _work(self, call: Call, trouble: _Trouble | None, kept: _Kept | None) -> tuple[int, Any] | None:
        """The status and the answer to a call; None if it gets no answer."""
        if trouble is not None and trouble.kind == HANG:
            self._stopped.wait(HANG_SECONDS)
            return None
        self._stopped.wait(self.seconds)
        if trouble is not None and trouble.kind in (BUSY, FAIL):
            return trouble.status, {"error": "too many calls" if trouble.kind == BUSY else "internal error"}
        if kept is not None:
            if (kept.call.path, kept.call.body) != (call.path, call.body):
                return 400, {"error": "this Idempotency-Key was used with another body"}
            if not kept.done:
                return 409, {"error": "the first call with this Idempotency-Key is still running"}
            answer = kept.answer
        elif trouble is not None and trouble.kind == DROP and not trouble.after_effect:
            return None
        else:
            answer = self._make(call)
        return None if trouble is not None and trouble.kind == DROP else (200, answer)

    def _make(self, call: Call) -> Any:
        answer = self._answer(call)
        with self._lock:
            call.effect = True
            kept = self._kept.get(call.key or "")
            if kept is not None and kept.call is call:
                kept.answer, kept.done = answer, True
        return answer

    def _end(self, call: Call, status: int) -> None:
        with self._lock:
            call.status, call.ended_at = status, time.time()
            kept = self._kept.get(call.key or "")
            if kept is not None and kept.call is call and not kept.done:  # it had no effect, so the key is free again
                del self._kept[call.key or ""]


def _made(call: Call) -> dict[str, str]:
    text = json.dumps([call.path, call.body], sort_keys=True)
    return {"id": hashlib.sha256(text.encode()).hexdigest()[:12]}


def _is_refusal(trouble: _Trouble | None) -> bool:
    return trouble is not None and trouble.kind in (BUSY, FAIL)


class _Server(socketserver.ThreadingMixIn, socketserver.TCPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128

    def __init__(self, provider: Provider) -> None:
        self.provider = provider
        self._open: set[socket.socket] = set()
        super().__init__(("127.0.0.1", 0), _Answer)

    def process_request(self, request: Any, client_address: Any) -> None:
        """See socketserver: one thread for each connection."""
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """See socketserver."""
        self._open.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore callers that go away."""

    def hang_up(self) -> None:
        """Close the connections that callers keep open, so that no thread is left behind."""
        for connection in list(self._open):
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:  # the caller closed it first
                pass


class _Answer(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """One call."""
        provider = self.server.provider
        length = int(self.headers.get("Content-Length") or 0)
        if length > BODY_LIMIT:
            self._say(413, {"error": "too large"}, None)
            return
        text = self.rfile.read(length)
        try:
            body = json.loads(text) if text else None
        except ValueError:
            body = text.decode(errors="replace")
        call, trouble, kept = provider._begin(self.path, body, self.headers.get("Idempotency-Key"))
        answer = None
        try:
            answer = provider._work(call, trouble, kept)
        finally:  # before the answer is sent, so that a caller who has it finds it counted
            provider._end(call, 0 if answer is None else answer[0])
        if answer is None:
            self.close_connection = True
        else:
            self._say(*answer, None if trouble is None else trouble.retry_after)

    do_PUT = do_PATCH = do_DELETE = do_GET = do_POST

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: `calls` holds everything."""

    def _say(self, status: int, value: Any, retry_after: float | None) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if retry_after is not None:
            self.send_header("Retry-After", f"{retry_after:g}")
        self.end_headers()
        self.wfile.write(body)
