"""The demo's pretend provider: slow, sometimes busy, sometimes broken, over real HTTP, in a separate process.

Must not know about jobs. It makes what it is asked for and counts its calls, so that the called side measures "made
twice". `python -m holdfast.demo.provider` prints its port and ends with its parent.
"""

import json
import os
import socket
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from random import Random
from typing import Any

from msgspec import Struct, to_builtins

SEED = 2
"""Decides which calls are slow, refused or broken: the same ones in every run."""

SECONDS = {
    "script_analysis": 0.9,
    "audio_generation": 1.3,
    "transcription": 0.8,
    "storyboard": 0.8,
    "video_generation": 1.0,
    "assembly": 1.2,
    "publishing": 0.7,
}
"""How long one call takes, plus or minus a third."""

BUSY_CHANCE, BROKEN_CHANCE = 0.06, 0.05
RETRY_AFTER_SECONDS = 1

UNDER_WAY, MADE, BUSY, BROKEN, CUT = "under way", "made", "busy", "broken", "cut"


class Call(Struct):
    """One call as the provider saw it. `cut` means that the caller was gone before the answer."""

    stage: str
    item: str
    caller: int
    began_at: float
    outcome: str = UNDER_WAY


class Provider(ThreadingHTTPServer):
    """Counts every call and keeps the list."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.calls: list[Call] = []
        self.lock = threading.Lock()

    def begin(self, stage: str, item: str, caller: int) -> tuple[Call, Random]:
        """Note a call. Return it with the random numbers that decide its fate, fixed by the item and its number of
        calls.
        """
        with self.lock:
            nth = sum((call.stage, call.item) == (stage, item) for call in self.calls)
            call = Call(stage, item, caller, time.time())
            self.calls.append(call)
        return call, Random(f"{SEED} {stage} {item} {nth}")  # noqa: S311


class Answer(BaseHTTPRequestHandler):
    """POST makes an item; GET returns all calls so far."""

    server: Provider
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """Make one item, unless busy or broken."""
        order = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        call, dice = self.server.begin(order["stage"], order["item"], int(order["caller"]))
        chance = dice.random()
        if chance < BUSY_CHANCE:
            call.outcome = BUSY
            self._say(429, {"error": "too many calls"}, {"Retry-After": str(RETRY_AFTER_SECONDS)})
            return
        seconds = SECONDS.get(call.stage, 0.5) * (0.67 + 0.66 * dice.random())
        if chance < BUSY_CHANCE + BROKEN_CHANCE:
            time.sleep(seconds / 3)
            call.outcome = BROKEN
            self._say(500, {"error": "the model fell over"}, {})
            return
        time.sleep(seconds)
        call.outcome = CUT if self._is_gone() else MADE
        if call.outcome == MADE:
            self._say(200, {"made": f"{call.stage}-{call.item}"}, {})

    def do_GET(self) -> None:
        """Return all calls so far."""
        with self.server.lock:
            calls = [to_builtins(call) for call in self.server.calls]
        self._say(200, calls, {})

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing, so that the demo's screen stays intact."""

    def _is_gone(self) -> bool:
        """Return whether the caller has gone away."""
        try:
            heard: bytes = self.connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
            return not heard
        except BlockingIOError:
            return False
        except OSError:
            return True

    def _say(self, code: int, value: Any, headers: dict[str, str]) -> None:
        body = json.dumps(value).encode()
        try:
            self.send_response(code)
            for name, text in {**headers, "Content-Length": str(len(body)), "Connection": "close"}.items():
                self.send_header(name, text)
            self.end_headers()
            self.wfile.write(body)
        except OSError:
            self.close_connection = True


def main() -> None:
    """Serve until the parent process ends or stops this one."""
    try:
        provider = Provider()
    except OSError as error:
        print(json.dumps({"error": f"it can't listen on 127.0.0.1: {error}"}), flush=True)
        sys.exit(1)
    print(json.dumps({"port": provider.server_port}), flush=True)
    threading.Thread(target=provider.serve_forever, daemon=True).start()
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()
