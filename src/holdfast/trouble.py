"""Saying that something goes wrong again and again: once, then once a minute, and when it is over."""

import logging
import time
from collections.abc import Callable

REPEAT_SECONDS = 60.0


class Trouble:
    """One kind of trouble, as a log tells it. `over` is what it says when that has passed."""

    def __init__(self, log: logging.Logger, what: str, over: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._what, self._over = what, over
        self._clock = clock
        self._kind: type[Exception] | None = None
        self._began = self._told = 0.0

    def say(self, error: Exception) -> None:
        """It went wrong. Another kind of error is told at once."""
        now = self._clock()
        if self._kind is None:
            self._began = now
        if type(error) is not self._kind or now - self._told >= REPEAT_SECONDS:
            self._log.warning("%s: %s: %s", self._what, type(error).__name__, error)
            self._told = now
        self._kind = type(error)

    def pass_by(self) -> None:
        """It went well."""
        if self._kind is not None:
            self._kind = None
            self._log.warning("%s, after %.1f s", self._over, self._clock() - self._began)
