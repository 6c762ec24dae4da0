"""Saying that something goes wrong again and again: once, then once a minute, and when it is over."""

import logging
import time
from collections.abc import Callable

REPEAT_SECONDS = 60.0

STANDING_SECONDS = 10.0
"""Trouble that nobody has met for so long no longer stands in the way of anything."""


class Trouble:
    """One kind of trouble, as a log tells it. `over` is what it says when that has passed."""

    def __init__(self, log: logging.Logger, what: str, over: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._what, self._over = what, over
        self._clock = clock
        self._told: dict[type[Exception], float] = {}
        self._began: float | None = None
        self._has_spoken = False
        self._last: tuple[float, str] | None = None

    def standing(self) -> str:
        """What goes wrong now, or nothing. From any thread."""
        last = self._last
        return "" if last is None or self._clock() - last[0] > STANDING_SECONDS else last[1]

    def say(self, error: Exception) -> None:
        """It went wrong. Each kind of error is told once a minute, also when it comes and goes."""
        now, kind = self._clock(), type(error)
        self._last = (now, f"{kind.__name__}: {error}")
        if self._began is None:
            self._began = now
        if kind not in self._told or now - self._told[kind] >= REPEAT_SECONDS:
            self._log.warning("%s: %s: %s", self._what, kind.__name__, error)
            self._told[kind] = now
            self._has_spoken = True

    def pass_by(self) -> None:
        """It went well."""
        self._last = None
        if self._began is not None:
            if self._has_spoken:
                self._log.warning("%s, after %.1f s", self._over, self._clock() - self._began)
            self._began, self._has_spoken = None, False
