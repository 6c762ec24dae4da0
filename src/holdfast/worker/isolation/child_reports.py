"""The progress and log lines that the code of an isolated step or job reports, passed on to the worker.

Must not be imported by a worker. Sends no more than a worker can handle.
"""

import logging
import threading
import time
from collections.abc import Callable
from contextvars import ContextVar

import msgspec

from holdfast.core.limits import LOG_LINE_CHARACTERS, PROGRESS_CHARACTERS
from holdfast.core.spending import amounts_of
from holdfast.worker import context
from holdfast.worker.isolation.messages import Doing, Heard, Logged, Progress, Settled, Spent
from holdfast.worker.recorded_errors import storable

PROGRESS_SECONDS = 0.05
"""The shortest time between two progress messages. In between, only the latest report counts."""

LINES_PER_SECOND = 200
"""Further log lines are dropped and counted: a flood of lines must not keep the worker busy."""


class Teller:
    """Passes on the progress and the log lines of one call, at a rate that a worker can handle."""

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
        """Send progress, now or a little later. A newer report replaces an older one."""
        word = Progress(done, total, storable(str(text), PROGRESS_CHARACTERS))
        msgspec.json.encode(word)  # A number that can't be encoded raises in the code that reported it.
        self.latest(lambda: word)

    def latest(self, word: Callable[[], Progress | Doing]) -> None:
        """Send what this returns, now or a little later. A newer message replaces an older one."""
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

    def spent(self, usd: float, tokens: float) -> None:
        """Send what was spent, at once: none of it may be lost."""
        with self._lock:
            if self._open:
                self._send(Spent(usd, tokens))

    def settled(self, limit: str, units: int) -> None:
        """Send what was used of a limit, at once."""
        with self._lock:
            if self._open:
                self._send(Settled(limit, units))

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
            line = storable(text, LOG_LINE_CHARACTERS)
            self._send(Logged(storable(record.name), record.levelno, line, record.created, context.PATH.get()))

    def close(self) -> None:
        """End the call's reports. Code that it left running sends nothing: the next call belongs to another job."""
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
            line = f"{self._left_out} log lines dropped: more than {LINES_PER_SECOND} per second"
            self._send(Logged("isolation", logging.WARNING, line, time.time()))
            self._left_out = 0


TELLER: ContextVar[Teller | None] = ContextVar("holdfast_teller", default=None)


def report_progress(done: int | None = None, total: int | None = None, text: str = "") -> None:
    """Report how far the job is. Outside a job, it does nothing."""
    attempt, teller = context.attempt_here(), TELLER.get()
    if attempt is not None:
        attempt.progress.report(done, total, text)
    elif teller is not None:
        teller.report(done, total, text)


def report_spend(*, usd: float = 0, tokens: float = 0) -> None:
    """Report what the running step has spent. Outside a job, it does nothing."""
    amounts = amounts_of("spend()", {"usd": usd, "tokens": tokens})
    attempt, teller = context.attempt_here(), TELLER.get()
    if attempt is not None:
        attempt.progress.spend(context.PATH.get(), amounts)
    elif teller is not None:
        teller.spent(usd, tokens)


def report_settle(limit: str, units: int) -> None:
    """Report what the running step has used of a limit. Outside a job, it does nothing."""
    attempt, teller = context.attempt_here(), TELLER.get()
    if attempt is not None:
        attempt.settle(context.PATH.get(), limit, units)
    elif teller is not None:
        teller.settled(limit, units)


class Forward(logging.Handler):
    """Passes log lines on. Lines from outside a call, such as from a stray thread, go where Python sends them."""

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
