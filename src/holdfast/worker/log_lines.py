"""A job's log lines: taken from `logging` while the job runs, bounded, and kept with the job.

Must not log anything itself: it would capture its own lines.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable

from holdfast import forking
from holdfast.core.limits import LOG_CHARACTERS, LOG_LINE_CHARACTERS, LOG_LINES

SHOWN_PATH_CHARACTERS = 200
"""How much of a step's path a heartbeat carries. A log line names only a step whose path is no longer."""


class Lines:
    """The last log lines of one job. Safe from any thread."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=LOG_LINES)
        self._characters = 0
        self._news = 0
        self._lock = threading.Lock()

    def load(self, lines: Iterable[str]) -> None:
        """Start with the lines that an earlier lease stored."""
        for line in lines:
            self.add(line)
        self._news = 0

    def add(self, line: str) -> None:
        """Add a line."""
        line = line[:LOG_LINE_CHARACTERS]
        with self._lock:
            if len(self._lines) == LOG_LINES:
                self._characters -= len(self._lines.popleft())
            self._lines.append(line)
            self._characters += len(line)
            while self._characters > LOG_CHARACTERS:
                self._characters -= len(self._lines.popleft())
            self._news += 1

    def is_empty(self) -> bool:
        """Whether there are no lines."""
        return not self._lines

    def fresh(self) -> list[str] | None:
        """Return all lines, if there are new ones since the last call."""
        with self._lock:
            if not self._news:
                return None
            self._news = 0
            return list(self._lines)


class Form(logging.Formatter):
    """How a line is kept: "2026-11-19T14:11:44Z [image#3] INFO film: drawn", between steps without the brackets.

    A path has no brackets itself. `jobs/views/pages/log` takes the line apart again.
    """

    def __init__(self, step: Callable[[], str]) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s", "%Y-%m-%dT%H:%M:%SZ")
        self.converter = time.gmtime  # A job's workers may be in different time zones.
        self._step = step

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        """See logging.Formatter.formatTime."""
        at, step = super().formatTime(record, datefmt), self._step()
        return f"{at} [{step}]" if 0 < len(step) <= SHOWN_PATH_CHARACTERS else at


class Capture(logging.Handler):
    """Passes what a job logs to `keep`, with the path of the step that runs here. Our own lines are about jobs, not
    from them, and are left out.
    """

    def __init__(self, keep: Callable[[str], None], step: Callable[[], str]) -> None:
        super().__init__()
        self._keep = keep
        self.setFormatter(Form(step))

    def emit(self, record: logging.LogRecord) -> None:
        """See logging.Handler.emit."""
        try:
            if _is_unheard(record, self) and logging.lastResort is not None:
                logging.lastResort.handle(record)
            if record.name.partition(".")[0] != "holdfast":
                self._keep(self.format(record))
        except Exception:
            self.handleError(record)


def _is_unheard(record: logging.LogRecord, ours: logging.Handler) -> bool:
    """Whether no other handler gets this record. Then it goes to Python's last resort, as it would without us."""
    logger: logging.Logger | None = logging.getLogger(record.name)
    while logger is not None:
        if any(handler is not ours for handler in logger.handlers):
            return False
        logger = logger.parent if logger.propagate else None
    lowest = logging.lastResort.level if logging.lastResort is not None else 0
    return record.levelno >= lowest


class Capturing(forking.Forkable):
    """One Capture for all workers of a process: installed by the first, removed by the last."""

    def __init__(self, keep: Callable[[str], None], step: Callable[[], str]) -> None:
        self._capture = Capture(keep, step)
        self._users = 0
        self._lock = threading.Lock()
        forking.watch(self)

    def start(self) -> None:
        """Capture for one more worker."""
        with self._lock:
            self._users += 1
            if self._users == 1:
                logging.getLogger().addHandler(self._capture)

    def stop(self) -> None:
        """One less."""
        with self._lock:
            self._users -= 1
            if self._users == 0:
                logging.getLogger().removeHandler(self._capture)

    def leave_behind(self) -> None:
        """See Forkable. The workers run in the parent."""
        self._lock, self._users = threading.Lock(), 0
        logging.getLogger().removeHandler(self._capture)
