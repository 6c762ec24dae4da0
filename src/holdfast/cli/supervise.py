"""Several worker processes with the same arguments: started, restarted when one dies, and told what was heard.

Must not know what a worker does: each is a process of its own, which ends with this one (`lifeline`).
"""

import signal
import subprocess
import sys
import time

from holdfast.cli.errors import CALLED_WRONGLY, STORE_LOST
from holdfast.cli.lifeline import Lifeline, say, stop_signals

RESTART_SECONDS = (0.5, 1.0, 2.0, 5.0, 10.0)
"""How long to wait before a worker process that died is started again; the last one repeats."""

HEALTHY_SECONDS = 60.0
"""A worker process that lived so long is started again without a wait."""

WATCH_SECONDS = 0.2
"""How often worker processes are looked at, and told what was heard meanwhile."""


def supervise(processes: int) -> int:
    """Keep so many worker processes running until a signal stops them; answer with the exit code."""
    heard: list[int] = []
    for one in stop_signals():
        # Only noted: a child that is just being started would else not be told.
        signal.signal(one, lambda number, _: heard.append(number))
    line, command = Lifeline(), [sys.executable, "-m", "holdfast.cli", *sys.argv[1:]]
    children = [_Child(line, command) for _ in range(processes)]
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
            if child.returncode == STORE_LOST:  # the others stop, too, and none is started on what is left
                heard.append(signal.SIGTERM)
                break
            child.restart_when_due()
    if any(child.returncode == STORE_LOST for child in children):
        return STORE_LOST
    # One that was stopped before it could listen had nothing to hand over.
    return max(0 if -child.returncode in heard else abs(child.returncode) for child in children)


def _pass_on(children: "list[_Child]", numbers: list[int]) -> None:
    for number in numbers:
        for child in children:
            if child.is_running:
                child.process.send_signal(number)


class _Child:
    """One place for a worker process, and when it may be filled again. Owns its process."""

    def __init__(self, line: Lifeline, command: list[str]) -> None:
        self._line, self._command = line, command
        self._deaths = 0
        self._start()

    def _start(self) -> None:
        self._due: float | None = None
        self._began = time.monotonic()
        self.process: subprocess.Popen[bytes] = self._line.start(self._command)

    @property
    def is_running(self) -> bool:
        """Whether its process has not ended."""
        return self.process.poll() is None

    @property
    def returncode(self) -> int:
        """How its process ended; 0 while it runs."""
        return self.process.returncode or 0

    def restart_when_due(self) -> None:
        """Start a process in the place of one that died: the sooner, the longer that one had lived."""
        now = time.monotonic()
        if self._due is None:
            self._deaths = 0 if now - self._began > HEALTHY_SECONDS else self._deaths + 1
            self._due = now + RESTART_SECONDS[min(self._deaths, len(RESTART_SECONDS) - 1)]
            say(f"worker process {self.process.pid} ended with {self.returncode}; starting another", err=True)
        elif now >= self._due:
            self._start()
