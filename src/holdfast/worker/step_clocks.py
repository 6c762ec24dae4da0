"""The clocks of running steps: they stop while all that runs inside a step waits for limits.

Must not know why a step waits, and must not write anything. What a step's own code does beside the steps that it calls
is not seen: while those wait, it counts as waiting, too.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Collection

from holdfast.worker.records import paths_above


class StepClocks:
    """Which steps of an attempt only wait, and their timeouts. On the loop; `is_still` is safe from any thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._around: Counter[str] = Counter()
        """How many steps wait inside each step."""
        self._still: dict[str, float] = {}
        """Since when each step only waits."""
        self._waited: dict[str, float] = {}
        """For how many seconds each timed step has only waited before."""
        self._timeouts: dict[str, tuple[asyncio.Timeout, float | None]] = {}
        """The timeout of each step that has one, and while it is stopped the seconds that are left."""

    # What happens.

    def count_wait(self, path: str, change: int) -> None:
        """Count a step that begins or stops to wait."""
        for around in paths_above(path):
            self._around[around] += change
            if not self._around[around]:
                del self._around[around]

    def recount(self, running: Collection[str]) -> bool:
        """Stop the clocks of the steps that only wait now, keep the others running; return whether any step runs."""
        if not self._around and not self._still:
            return bool(running)
        busy = [path for path in running if path not in self._around]
        around_busy = {around for path in busy for around in paths_above(path)}
        still = {path for path in running if path in self._around and path not in around_busy}
        for path in [path for path in self._still if path not in still]:
            self._go_on(path)
        for path in still.difference(self._still):
            self._stop(path)
        return bool(busy)

    def is_still(self, path: str) -> bool:
        """Whether a running step only waits."""
        return path in self._still

    # Timeouts.

    def start(self, path: str, timeout: asyncio.Timeout | None = None) -> None:
        """Begin to time a try of a step. `timeout` is rescheduled for the time in which it only waits."""
        self._waited[path] = 0.0
        if timeout is not None:
            self._timeouts[path] = timeout, None

    def end(self, path: str) -> float:
        """End that; return for how many seconds the step only waited."""
        self._timeouts.pop(path, None)
        return self._waited.pop(path, 0.0)

    def _stop(self, path: str) -> None:
        self._still[path] = time.monotonic()
        timeout, _ = self._timeouts.get(path, (None, None))
        if timeout is not None and (when := timeout.when()) is not None and not timeout.expired():
            self._timeouts[path] = timeout, when - self._loop.time()
            timeout.reschedule(None)

    def _go_on(self, path: str) -> None:
        waited = time.monotonic() - self._still.pop(path)
        if path in self._waited:
            self._waited[path] += waited
        timeout, left = self._timeouts.get(path, (None, None))
        if timeout is not None and left is not None:
            self._timeouts[path] = timeout, None
            timeout.reschedule(self._loop.time() + left)
