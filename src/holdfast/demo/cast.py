"""The demo's other processes: a pretend provider and two workers. Starts them, and stops each by its process id.

Must not draw anything, and must never stop a process that it didn't start.
"""

import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from types import TracebackType

from msgspec import convert

from holdfast.core.errors import HoldfastError
from holdfast.demo.provider import Call
from holdfast.demo.video import PARENT, PROVIDER

WORKERS = 2
START_SECONDS = 30.0
"""How long a process may take to start, on a slow machine."""

STOP_SECONDS = 5.0
"""How long a process may take to stop before it is killed."""


class Cast:
    """The processes of one demo. The `with` block stops all of them at its end, whatever happens."""

    def __init__(self, url: str, folder: Path) -> None:
        self._url = url
        self._folder = folder
        self._provider: subprocess.Popen[bytes] | None = None
        self._server: subprocess.Popen[bytes] | None = None
        self.workers: list[subprocess.Popen[bytes]] = []
        self.port = 0

    def __enter__(self) -> "Cast":
        try:
            self._start_provider()
            for number in range(1, WORKERS + 1):
                self._start_worker(number)
        except BaseException:
            self.stop(in_peace=False)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop(in_peace=error is None)

    def number(self, pid: int) -> int | None:
        """Return the number of the worker with this process id, 1 or 2, or None."""
        return next((place for place, worker in enumerate(self.workers, 1) if worker.pid == pid), None)

    def kill(self, number: int) -> None:
        """End a worker with SIGKILL, so that it has no chance to clean up."""
        self.workers[number - 1].kill()

    def check(self, besides: int | None) -> None:
        """Raise if a worker other than `besides` has ended."""
        for number, worker in enumerate(self.workers, 1):
            if number != besides and worker.poll() is not None:
                raise HoldfastError(f"demo: worker {number} ended unexpectedly: {self._last_words(number)}")

    def calls(self) -> list[Call]:
        """Return all calls, as the provider counted them."""
        try:
            connection = HTTPConnection("127.0.0.1", self.port, timeout=START_SECONDS)
            connection.request("GET", "/")
            calls = convert(json.load(connection.getresponse()), list[Call])
            connection.close()
        except (OSError, HTTPException, ValueError) as error:
            raise HoldfastError(f"demo: the pretend provider on port {self.port} doesn't answer: {error}") from error
        return calls

    def serve(self) -> str:
        """Start the dashboard on a free port, and return its address."""
        command = [sys.executable, "-m", "holdfast.cli", "serve", "holdfast.demo.video:app", "--port", "0"]
        log = self._folder / "server.log"
        with log.open("wb") as written:
            self._server = subprocess.Popen(
                [*command, "--log-level", "warning"],
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=written,
                stderr=written,
                start_new_session=True,
            )
        until = time.monotonic() + START_SECONDS
        while time.monotonic() < until and self._server.poll() is None:
            if found := re.search(r" at (http://\S+)\n", log.read_text(errors="replace")):
                return found[1]
            time.sleep(0.05)
        lines = log.read_text(errors="replace").strip().splitlines()
        said = lines[-1].removeprefix("holdfast: ") if lines else f"it printed nothing within {START_SECONDS:g} s"
        raise HoldfastError(f"demo: the dashboard could not start: {said}")

    def stop(self, *, in_peace: bool) -> None:
        """Stop everything that still runs, each by its process id. After an interrupt, don't wait for jobs."""
        running = [one for one in (*self.workers, self._provider, self._server) if one is not None]
        for process in running:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM if in_peace else signal.SIGKILL)
        until = time.monotonic() + STOP_SECONDS
        for process in running:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.1, until - time.monotonic()))
            if process.poll() is None:
                process.kill()
                process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()

    def _start_provider(self) -> None:
        command = [sys.executable, "-m", "holdfast.demo.provider"]
        with (self._folder / "provider.log").open("wb") as log:
            self._provider = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, start_new_session=True
            )
        assert self._provider.stdout is not None
        ready, _, _ = select.select([self._provider.stdout], [], [], START_SECONDS)
        line = self._provider.stdout.readline() if ready else b""
        report = json.loads(line) if line else {"error": f"it printed nothing within {START_SECONDS:g} s"}
        if "error" in report:
            raise HoldfastError(f"demo: the pretend provider could not start: {report['error']}")
        self.port = int(report["port"])

    def _start_worker(self, number: int) -> None:
        command = [sys.executable, "-m", "holdfast.cli", "worker", "holdfast.demo.video:app"]
        command += ["--at-once", "1", "--log-level", "warning"]
        environment = self._environment()
        with self._log(number).open("wb") as log:
            # A new session: Ctrl-C in the terminal reaches only the demo, which then stops the others.
            worker = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        self.workers.append(worker)

    def _environment(self) -> dict[str, str]:
        # Not on the command line, which everybody on the machine can read: a store's URL may contain a password.
        return os.environ | {"HOLDFAST_URL": self._url, PROVIDER: str(self.port), PARENT: str(os.getpid())}

    def _log(self, number: int) -> Path:
        return self._folder / f"worker-{number}.log"

    def _last_words(self, number: int) -> str:
        lines = self._log(number).read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it logged nothing"
