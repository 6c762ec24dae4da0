"""What the servers of the tests share: a process in a folder of its own, on a free port, stopped by its own pid."""

import contextlib
import ctypes
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest

STOP_SECONDS = 20.0
PORTS = 3
"""How many ports a new server tries: a port that was free may be another process's by the time the server binds it."""


class NoServer(pytest.skip.Exception):  # type: ignore[name-defined]
    """No such server can be started here; the text says why. A test that needs it is skipped by this."""


class ServerProcess:
    """A running server. `restart`, `stop`, `crash` and `terminate` are for tests that want to see what that does."""

    STOPS: ClassVar[tuple[signal.Signals, ...]]
    """The signals that stop it in an orderly way; the first is what `stop` sends."""

    START_SECONDS: ClassVar[float]
    LOOK_SECONDS: ClassVar[float] = 0.02

    def __init__(self, folder: Path, settings: tuple[str, ...]) -> None:
        self.folder = folder
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None
        self._has_answered = False
        self.port = free_port()

    @property
    def url(self) -> str:
        raise NotImplementedError

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def command(self) -> list[str | Path]:
        """What is started."""
        raise NotImplementedError

    def answers(self) -> bool:
        """Whether it is ready."""
        raise NotImplementedError

    def terminate(self) -> None:
        """End the connections to it."""
        raise NotImplementedError

    def as_user(self) -> dict[str, Any]:
        """Whom it runs as, for `Popen`."""
        return {}

    def start(self) -> None:
        """Start it, and wait until it answers. It keeps its port from its first answer on."""
        for left in reversed(range(PORTS)):
            try:
                self._start()
                return
            except NoServer as error:
                if not left or self._has_answered or "in use" not in error.msg:
                    raise
                self.port = free_port()

    def _start(self) -> None:
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=end_with_us,
                **self.as_user(),
            )
        end = time.monotonic() + self.START_SECONDS
        while not self.answers():
            if self._process.poll() is not None or time.monotonic() > end:
                self.stop(signal.SIGKILL)
                raise NoServer(f"the server did not start: {self.log()[-600:]}")
            time.sleep(self.LOOK_SECONDS)
        self._has_answered = True

    def stop(self, how: signal.Signals | None = None) -> None:
        """Stop it with a signal."""
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(how or self.STOPS[0])
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(STOP_SECONDS)

    def restart(self, how: signal.Signals | None = None) -> None:
        self.stop(how)
        self.start()

    def crash(self) -> None:
        """Kill it, and start it again."""
        self.restart(signal.SIGKILL)

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")


def run_with(server_url: Callable[[], contextlib.AbstractContextManager[str]], command: list[str], name: str) -> int:
    """Run a command with the URL of a server in place of `{url}`; answer with its exit code."""
    try:
        with server_url() as url:
            return subprocess.call([part.replace("{url}", url) for part in command])
    except NoServer as error:
        print(f"{name}: skipped. {error.msg}")
        return 0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def end_with_us() -> None:
    """In the child, before it becomes the server: a test run that is killed leaves no server behind (on Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGQUIT)
