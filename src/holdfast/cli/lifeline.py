"""Worker processes end with the process that started them, however that ends. Must not know what a worker does.

The parent holds the writing end of a pipe and never writes. When it is gone, whether by a closed terminal or by
`kill -9`, the system closes that end, and every worker reads the end of the file.
"""

import logging
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from holdfast.cli.errors import echo
from holdfast.cli.log_format import is_json
from holdfast.safe_text import logger

log = logger("holdfast.worker")

VARIABLE = "HOLDFAST_LIFELINE"
"""Names the worker's end of the pipe. A worker removes it from its environment before it loads an App."""

ABORT_SECONDS = 15.0
"""How long after the second signal a worker may take to end, before its process ends without more ado."""


class Lifeline:
    """The parent's end. It is never closed: the system does that when this process ends."""

    def __init__(self) -> None:
        self._theirs, self._ours = os.pipe()

    def start(self, command: Sequence[str]) -> "subprocess.Popen[bytes]":
        """Start a worker that ends with this process. In a session of its own: signals reach it only through us."""
        return subprocess.Popen(
            command,
            env={**os.environ, VARIABLE: str(self._theirs)},
            pass_fds=[self._theirs],
            start_new_session=True,
        )


def inherited_line() -> int | None:
    """The worker's end, if its parent gave it one. To be asked once."""
    number = os.environ.pop(VARIABLE, "")
    if not number.isdigit():
        return None
    with suppress(OSError):
        os.set_inheritable(int(number), False)
    return int(number)


def stop_with(line: int, grace_seconds: Callable[[], float]) -> None:
    """When the parent is gone, stop this process as one SIGTERM does, then as two do, and at last end it."""

    def watch() -> None:
        with suppress(OSError):
            os.read(line, 1)
        for patience in (grace_seconds() + ABORT_SECONDS, 2 * ABORT_SECONDS):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(patience)
        os._exit(1)

    threading.Thread(target=watch, name="holdfast-lifeline", daemon=True).start()


def stop_signals() -> list[signal.Signals]:
    """The signals that ask a worker to stop. `nohup` means that a closed terminal doesn't."""
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [signal.SIGTERM, signal.SIGINT, *([] if ignored else [signal.SIGHUP])]


def say(text: str, *, err: bool = False) -> None:
    """Print a line, or log it as JSON, if there is still somewhere to print it: nobody may fail to stop because there
    is no terminal any more.
    """
    with suppress(OSError):
        if is_json():
            log.log(logging.WARNING if err else logging.INFO, "%s", text)
        else:
            echo(text, err=err)
