"""Runs several processes with the same arguments: starts them, restarts them, and passes signals on.

Must not know what a worker or server does: each is a separate process that ends with this one (`lifeline`).
"""

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

from holdfast.cli.errors import CALLED_WRONGLY, STORE_LOST
from holdfast.cli.lifeline import Lifeline, say, stop_signals

RESTART_SECONDS = (0.5, 1.0, 2.0, 5.0, 10.0)
"""Seconds to wait before a dead worker process is restarted; the last one repeats."""

HEALTHY_SECONDS = 60.0
"""A worker process that lived this long is restarted without a wait."""

WATCH_SECONDS = 0.2
"""How often to check the worker processes and pass on signals."""


def supervise(
    processes: int, files: Sequence[int] = (), own: Callable[[int], Sequence[str]] = lambda number: ()
) -> int:
    """Keep this many processes running, which inherit these open files, until a signal stops them.

    `own` returns further arguments for the process of this number, from 0. Return the exit code.
    """
    heard: list[int] = []
    for one in stop_signals():
        # Only note the signal: a child that is just starting would miss it.
        signal.signal(one, lambda number, _: heard.append(number))
    line, command = Lifeline(), [sys.executable, "-m", "holdfast.cli", *sys.argv[1:]]
    children = [_Child(line, [*command, *own(number)], files) for number in range(processes)]
    passed_on = 0
    while not heard or any(child.is_running for child in children):
        numbers = heard[passed_on:]
        passed_on += len(numbers)
        _pass_on(children, numbers)
        time.sleep(WATCH_SECONDS)
        for child in children:
            if heard or child.is_running:
                continue
            if child.returncode == CALLED_WRONGLY:
                _pass_on(children, [signal.SIGTERM])
                return CALLED_WRONGLY
            if child.returncode == STORE_LOST:  # stop the others, too, and start none on a damaged store
                heard.append(signal.SIGTERM)
                break
            child.restart_when_due()
    if any(child.returncode == STORE_LOST for child in children):
        return STORE_LOST
    # A process that was stopped before it could handle signals had no jobs to hand over.
    return max(0 if -child.returncode in heard else abs(child.returncode) for child in children)


def _pass_on(children: "list[_Child]", numbers: list[int]) -> None:
    for number in numbers:
        for child in children:
            if child.is_running:
                child.process.send_signal(number)


class _Child:
    """One worker process, and when it may be restarted."""

    def __init__(self, line: Lifeline, command: list[str], files: Sequence[int]) -> None:
        self._line, self._command, self._files = line, command, files
        self._deaths = 0
        self._start()

    def _start(self) -> None:
        self._due: float | None = None
        self._began = time.monotonic()
        self.process: subprocess.Popen[bytes] = self._line.start(self._command, self._files)

    @property
    def is_running(self) -> bool:
        """Return whether the process is running."""
        return self.process.poll() is None

    @property
    def returncode(self) -> int:
        """Return the exit code of the process; 0 while it runs."""
        return self.process.returncode or 0

    def restart_when_due(self) -> None:
        """Replace a dead process after a delay: the longer it lived, the shorter the delay."""
        now = time.monotonic()
        if self._due is None:
            self._deaths = 0 if now - self._began > HEALTHY_SECONDS else self._deaths + 1
            self._due = now + RESTART_SECONDS[min(self._deaths, len(RESTART_SECONDS) - 1)]
            say(f"worker process {self.process.pid} ended with exit code {self.returncode}; starting another", err=True)
        elif now >= self._due:
            self._start()
