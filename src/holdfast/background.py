"""Background work: a coroutine in its own thread, and a log that reports repeated failures once a minute.

Must not know what the work is.
"""

import asyncio
import concurrent.futures
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

Join = Callable[[float], Awaitable[None]]
"""Waits for the started work to end, at most this many seconds."""

Spawn = Callable[[str, Callable[[], Coroutine[Any, Any, None]]], Join]
"""Starts named work that runs in the background."""


def own_thread(name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> Join:
    """Run a coroutine in its own thread and event loop, which never keep the process from exiting."""
    ended: concurrent.futures.Future[None] = concurrent.futures.Future()

    def run() -> None:
        try:
            asyncio.run(work())
        finally:
            ended.set_result(None)

    threading.Thread(target=run, name=name, daemon=True).start()

    async def join(seconds: float) -> None:
        # Not in a thread of the loop's pool: jobs may occupy all of them.
        await asyncio.wait([asyncio.wrap_future(ended)], timeout=seconds)

    return join


REPEAT_SECONDS = 60.0

STANDING_SECONDS = 10.0
"""An error that hasn't occurred for this long counts as resolved."""


class LogOnce:
    """Logs one kind of trouble. `over` is the line to log when it has passed."""

    def __init__(self, log: logging.Logger, what: str, over: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._what, self._over = what, over
        self._clock = clock
        self._told: dict[type[BaseException], float] = {}
        self._began: float | None = None
        self._has_spoken = False
        self._last: tuple[float, str] | None = None

    def standing(self) -> str:
        """What is failing now, or nothing. From any thread."""
        last = self._last
        return "" if last is None or self._clock() - last[0] > STANDING_SECONDS else last[1]

    def say(self, error: BaseException, text: str | None = None) -> None:
        """Report a failure, in its own words or in these. Each kind of error is logged once a minute, even if it comes
        and goes.
        """
        now, kind = self._clock(), type(error)
        text = str(error) if text is None else text
        self._last = (now, f"{kind.__name__}: {text}")
        if self._began is None:
            self._began = now
        if kind not in self._told or now - self._told[kind] >= REPEAT_SECONDS:
            self._log.warning("%s: %s: %s", self._what, kind.__name__, text)
            self._told[kind] = now
            self._has_spoken = True

    def recovered(self) -> None:
        """Report a success."""
        self._last = None
        if self._began is not None:
            if self._has_spoken:
                self._log.warning("%s, after %.1f s", self._over, self._clock() - self._began)
            self._began, self._has_spoken = None, False
