"""What the code of an isolated step or job says while it runs: its progress and its log lines, passed on to the worker.

Must not be imported by a worker. No more is passed on than a worker can bear.
"""

import logging
import threading
import time
from collections.abc import Callable
from contextvars import ContextVar

import msgspec

from holdfast.core.limits import LOG_LINE_CHARACTERS, PROGRESS_CHARACTERS
from holdfast.worker import context
from holdfast.worker.isolation.messages import Doing, Heard, Logged, Progress
from holdfast.worker.recorded_errors import storable

PROGRESS_SECONDS = 0.05
"""Progress is told at most this often; in between only the last word counts."""

LINES_PER_SECOND = 200
"""More log lines are left out, and counted: a flood here must not keep the worker busy."""


class Teller:
    """Passes on the progress and the log lines of one call, and no more of them than a worker can bear."""

    def __init__(self, send: Callable[[Heard], None]) -> None:
        self._send = send
        self._lock = threading.RLock()
        self._open = True
        self._latest: Callable[[], Progress | Doing] | None = None
        self._due = 0.0
        self._timer: threading.Timer | None = None
        self._second = 0
        self._lines = 0
        self._left_out = 0

    def report(self, done: int | None, total: int | None, text: str) -> None:
        """Tell progress, now or a little later; a newer word takes the place of an older one."""
        word = Progress(done, total, storable(str(text)[:PROGRESS_CHARACTERS]))
        msgspec.json.encode(word)  # A number that can't be written is told to the code that gave it.
        self.latest(lambda: word)

    def latest(self, word: Callable[[], Progress | Doing]) -> None:
        """Say what this gives, now or a little later; a newer one takes the place of an older one."""
        with self._lock:
            if not self._open:
                return
            self._latest = word
            wait = self._due - time.monotonic()
            if wait <= 0:
                self._flush()
            elif self._timer is None:
                self._timer = threading.Timer(wait, self._flush)
                self._timer.daemon = True
                self._timer.start()

    def log(self, record: logging.LogRecord, text: str) -> None:
        """Pass on a log line, unless there were too many in this second."""
        with self._lock:
            if not self._open:
                return
            second = int(time.monotonic())
            if second != self._second:
                self._own_up()
                self._second, self._lines = second, 0
            self._lines += 1
            if self._lines > LINES_PER_SECOND:
                self._left_out += 1
                return
            line = storable(text[:LOG_LINE_CHARACTERS])
            self._send(Logged(storable(record.name), record.levelno, line, record.created))

    def close(self) -> None:
        """The call has ended. What it left running tells nothing more: the next call is another job's."""
        with self._lock:
            self._flush()
            self._own_up()
            self._open = False

    def _flush(self) -> None:
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            if self._open and self._latest is not None:
                self._send(self._latest())
                self._latest = None
                self._due = time.monotonic() + PROGRESS_SECONDS

    def _own_up(self) -> None:
        if self._left_out:
            line = f"{self._left_out} log lines left out: more than {LINES_PER_SECOND} in a second"
            self._send(Logged("isolation", logging.WARNING, line, time.time()))
            self._left_out = 0


TELLER: ContextVar[Teller | None] = ContextVar("holdfast_teller", default=None)


def report_progress(done: int | None = None, total: int | None = None, text: str = "") -> None:
    """Tell how far the job has come. Outside a job it does nothing."""
    attempt, teller = context.attempt_here(), TELLER.get()
    if attempt is not None:
        attempt.progress.report(done, total, text)
    elif teller is not None:
        teller.report(done, total, text)


class Forward(logging.Handler):
    """Passes log lines on. What comes from outside a call, such as a stray thread, goes where Python sends it."""

    def emit(self, record: logging.LogRecord) -> None:
        """See logging.Handler.emit."""
        teller = TELLER.get()
        try:
            if teller is not None:
                teller.log(record, self.format(record))
            elif logging.lastResort is not None and record.levelno >= logging.lastResort.level:
                logging.lastResort.handle(record)
        except Exception:
            self.handleError(record)
