"""A pretend provider over real HTTP on this machine: slow, busy, broken or deaf on demand, and it counts its calls.

Must not know jobs: what happened twice is told by the one who was called. It keeps the first answer to each
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
"""The largest body of a call, in bytes."""

HANG_SECONDS = 600.0
"""How long a call that hangs is held at most, if the provider isn't stopped before."""

BUSY, FAIL, HANG, DROP = "busy", "fail", "hang", "drop"


class Call(Struct):
    """One call as the provider saw it. `status` is 0 while it is under way, and when nobody was answered."""

    path: str
    body: Any
    key: str | None
    began_at: float
    """Seconds since 1970."""
    status: int = 0
    ended_at: float | None = None
    effect: bool = False
    """Whether this call made something: not if it was refused, or if its key had been used before."""


class _Trouble(Struct, frozen=True):
    kind: str
    status: int = 0
    retry_after: float | None = None
    after_effect: bool = False


class _Kept(Struct):
    """What is known of a key: its first call, and the answer once there is one."""

    call: Call
    answer: Any = None
    done: bool = False


class Provider:
    """A provider to test against: `with Provider() as provider:`, then POST to `provider.url`.

    Each call takes `seconds`, makes one effect, and is answered with status 200 and JSON: what `answer` makes of the
    call, by default `{"id": …}`, the same for the same path and body. A call with the `Idempotency-Key` of an earlier
    one gets that one's answer and makes no second effect; 409 while the earlier one is under way, 400 if the body is
    another.
    """

    def __init__(self, *, seconds: float = 0.0, answer: Callable[[Call], Any] | None = None) -> None:
        self.seconds = seconds
        """How long each call takes; may be changed at any time."""
        self.calls: list[Call] = []
        """All calls, in the order in which they began."""
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
        """Where it listens, without a slash at the end."""
        if self._server is None:
            raise Invalid("this Provider is not started: use it as `with Provider() as provider:`")
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def effects(self) -> list[Call]:
        """The calls that made something: copies under a known key, and refused calls, are not among them."""
        with self._lock:
            return [call for call in self.calls if call.effect]

    @property
    def begun(self) -> int:
        """How many calls have begun."""
        return len(self.calls)

    @property
    def finished(self) -> int:
        """How many calls are over, answered or cut off."""
        with self._lock:
            return sum(call.ended_at is not None for call in self.calls)

    # What the next calls meet, in the order in which it was asked for.

    def busy(self, times: int = 1, *, retry_after: float | None = 1) -> None:
        """Refuse calls with status 429, and say when to come back."""
        self._meet(times, _Trouble(BUSY, 429, retry_after))

    def fail(self, times: int = 1, *, status: int = 500) -> None:
        """Fail calls with this status, before they make anything."""
        self._meet(times, _Trouble(FAIL, status))

    def hang(self, times: int = 1) -> None:
        """Take calls, and neither make anything nor answer until the provider stops."""
        self._meet(times, _Trouble(HANG))

    def drop(self, times: int = 1, *, after_effect: bool = False) -> None:
        """Break the connection instead of answering, before the effect or after it: the caller can't tell which."""
        self._meet(times, _Trouble(DROP, after_effect=after_effect))

    def _meet(self, times: int, trouble: _Trouble) -> None:
        with self._lock:
            self._troubles.extend([trouble] * times)

    # Answering, in the thread of the connection.

    def _begin(self, path: str, body: Any, key: str | None) -> tuple[Call, _Trouble | None, _Kept | None]:
        """Note a call; what is to go wrong with it, and the earlier call that its key stands for."""
        with self._lock:
            call = Call(path, body, key, time.time())
            self.calls.append(call)
            trouble = self._troubles.popleft() if self._troubles else None
            kept = None if key is None else self._kept.get(key)
            if key is not None and kept is None and not _is_refusal(trouble):
                self._kept[key] = _Kept(call)
            return call, trouble, kept

    def _work(self, call: Call, trouble: _Trouble | None, kept: _Kept | None) -> tuple[int, Any] | None:
        """The status and the answer to a call; None when there is none."""
        if trouble is not None and trouble.kind == HANG:
            self._stopped.wait(HANG_SECONDS)
            return None
        self._stopped.wait(self.seconds)
        if trouble is not None and trouble.kind in (BUSY, FAIL):
            return trouble.status, {"error": "too many calls" if trouble.kind == BUSY else "it broke"}
        if kept is not None:
            if (kept.call.path, kept.call.body) != (call.path, call.body):
                return 400, {"error": "this Idempotency-Key was used with another body"}
            if not kept.done:
                return 409, {"error": "the first call with this Idempotency-Key is under way"}
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
            if kept is not None and kept.call is call and not kept.done:  # nothing came of it: the key is free again
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
        """A caller that goes away is no error of ours."""

    def hang_up(self) -> None:
        """End the connections that callers keep open, so that no thread is left behind."""
        for connection in list(self._open):
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:  # its caller was faster
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
        finally:  # before it is sent: who has heard the answer finds it counted
            provider._end(call, 0 if answer is None else answer[0])
        if answer is None:
            self.close_connection = True
        else:
            self._say(*answer, None if trouble is None else trouble.retry_after)

    do_PUT = do_PATCH = do_DELETE = do_GET = do_POST

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: `calls` tells everything."""

    def _say(self, status: int, value: Any, retry_after: float | None) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if retry_after is not None:
            self.send_header("Retry-After", f"{retry_after:g}")
        self.end_headers()
        self.wfile.write(body)
