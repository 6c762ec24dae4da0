"""Makes worker processes end with the process that started them, however that ends. Must not know what a worker does.

The parent holds the write end of a pipe and never writes. When the parent is gone, after a closed terminal or `kill
-9`, the system closes that end, and every worker reads end-of-file.
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
"""The environment variable with the worker's end of the pipe. A worker removes it before it loads an App."""

ABORT_SECONDS = 15.0
"""How long a worker may take to end after the second signal, before its process exits without cleanup."""


class Lifeline:
    """The parent's end of the pipe. Only the system closes it, when this process ends."""

    def __init__(self) -> None:
        self._theirs, self._ours = os.pipe()

    def start(self, command: Sequence[str], files: Sequence[int] = ()) -> "subprocess.Popen[bytes]":
        """Start a process that ends with this one and inherits these open files. It has its own session, so only this
        process sends it signals.
        """
        return subprocess.Popen(
            command,
            env={**os.environ, VARIABLE: str(self._theirs)},
            pass_fds=[self._theirs, *files],
            start_new_session=True,
        )


def inherited_line() -> int | None:
    """Return the worker's end of the pipe, if the parent passed one. Call this once."""
    number = os.environ.pop(VARIABLE, "")
    if not number.isdigit():
        return None
    with suppress(OSError):
        os.set_inheritable(int(number), False)
    return int(number)


def stop_with(line: int, grace_seconds: Callable[[], float]) -> None:
    """When the parent is gone, stop this process as a first SIGTERM does, then as a second does, then exit."""

    def watch() -> None:
        with suppress(OSError):
            os.read(line, 1)
        for patience in (grace_seconds() + ABORT_SECONDS, 2 * ABORT_SECONDS):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(patience)
        os._exit(1)

    threading.Thread(target=watch, name="holdfast-lifeline", daemon=True).start()


def stop_signals() -> list[signal.Signals]:
    """Return the signals that ask a worker to stop. Under `nohup`, a closed terminal is not one of them."""
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [signal.SIGTERM, signal.SIGINT, *([] if ignored else [signal.SIGHUP])]


def say(text: str, *, err: bool = False) -> None:
    """Print a line, or log it as JSON. Ignore errors: a process must be able to stop when its terminal is gone."""
    with suppress(OSError):
        if is_json():
            log.log(logging.WARNING if err else logging.INFO, "%s", text)
        else:
            echo(text, err=err)
