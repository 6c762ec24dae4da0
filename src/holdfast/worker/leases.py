"""A worker's leases: one heartbeat for all its jobs, sent from a separate thread, and the fence.

Must not run jobs. A busy event loop or a blocked handler can't stop the heartbeat. An unreachable store can; then the
fence closes by the worker's own monotonic clock, before another worker may take over its jobs.
"""

import asyncio
import time
from collections.abc import Callable

from holdfast.background import Join, LogOnce, Spawn, own_thread
from holdfast.core.errors import StoreLost
from holdfast.core.model import Beat, Presence
from holdfast.engines.contract import Engine
from holdfast.safe_text import logger

log = logger("holdfast.worker")

SOON_SECONDS = 0.5
"""The shortest time between extra heartbeats that report progress."""

MARGIN = 0.8
"""The fence closes at this part of the lease, because clocks differ a little and stopping a step takes a moment."""

STALLED = (
    "this process did not run for %.0f s (a call held the GIL, or the process or machine was suspended); "
    "other workers may have taken over its jobs; if a step makes such a call, run it with isolate='process'"
)
"""Logged when a worker was silent for longer than its fence allows, although its store was fine."""

LEAVE_SECONDS = 5.0
"""How long to wait for the last heartbeat when a worker ends."""


class Leases:
    """Sends heartbeats for a worker. `on_answer` is called on the heartbeat's thread with each worker status and its
    answer. `on_lost` is called once if this isn't the store that we wrote to: no heartbeat will ever be answered again.
    While the worker's loop isn't running, none is sent: a worker whose event loop has ended must not seem alive.

    A simulation passes its own clock and its own way to `spawn` the thread.
    """

    def __init__(
        self,
        engine: Engine,
        make_presence: Callable[[bool], Presence],
        on_answer: Callable[[Presence, Beat], None],
        on_lost: Callable[[StoreLost], None],
        *,
        beat_seconds: float,
        lease_seconds: float,
        is_running: Callable[[], bool] = lambda: True,
        clock: Callable[[], float] = time.monotonic,
        spawn: Spawn = own_thread,
    ) -> None:
        self._engine = engine
        self._make_presence = make_presence
        self._on_answer = on_answer
        self._on_lost = on_lost
        self._beat_seconds = beat_seconds
        self._lease_seconds = lease_seconds
        self._is_running = is_running
        self._clock = clock
        self._spawn = spawn
        self._deadline = 0.0
        self._join: Join | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._nudged: asyncio.Event | None = None
        self._has_news = False
        self._is_urgent = False
        self._stopping = False
        self._leaving = True
        self._trouble = LogOnce(log, "a heartbeat was not answered", "heartbeats are answered again")

    def may_start(self) -> bool:
        """Whether a new step may start: our last answered heartbeat is recent enough."""
        return self._clock() < self._deadline

    def deadline(self) -> float:
        """The time, by our clock, until which a new step may start."""
        return self._deadline

    def is_over(self, since: float) -> bool:
        """Whether a lease taken at this time, by our clock, may have expired if nothing renewed it."""
        return self._clock() > since + self._lease_seconds * MARGIN

    async def start(self) -> None:
        """Send the first heartbeat here, so that the caller sees errors; then start the thread."""
        await self._send_heartbeat(leaving=False)
        self._join = self._spawn("holdfast-beat", self._run)

    def announce(self) -> None:
        """Send a heartbeat shortly, because there is progress to report. From any thread."""
        if not self._has_news:
            self._wake()

    def beat_now(self) -> None:
        """Send a heartbeat at once. From any thread."""
        self._is_urgent = True
        self._wake()

    def _wake(self) -> None:
        self._has_news = True
        loop, nudged = self._loop, self._nudged
        if loop is not None and nudged is not None:
            try:
                loop.call_soon_threadsafe(nudged.set)
            except RuntimeError:  # the loop is ending
                pass

    async def stop(self, *, leaving: bool = True) -> None:
        """Stop the heartbeats. With `leaving`, sign off; without, other workers notice that this one is gone."""
        self._stopping, self._leaving = True, leaving
        self.beat_now()
        if self._join is not None:
            await self._join(LEAVE_SECONDS)

    async def _run(self) -> None:
        self._nudged = nudged = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        last = self._clock()
        while not self._stopping:
            left = last + self._pause() - self._clock()
            if left > 0 and not self._is_urgent:
                waits_from = self._clock()
                try:
                    async with asyncio.timeout(left):
                        await nudged.wait()
                except TimeoutError:
                    pass
                nudged.clear()
                # This thread does nothing else. If it wakes this late, the whole process couldn't run.
                stalled = self._clock() - waits_from - left
                if stalled > self._beat_seconds and not self.may_start():
                    log.warning(STALLED, stalled + left)
                continue
            self._is_urgent = self._has_news = False
            last = self._clock()
            if self._is_running() and not await self._try_heartbeat(leaving=False):
                return
        if self._leaving:
            await self._try_heartbeat(leaving=True)

    def _pause(self) -> float:
        return min(SOON_SECONDS, self._beat_seconds) if self._has_news else self._beat_seconds

    async def _try_heartbeat(self, *, leaving: bool) -> bool:
        """Send a heartbeat. Returns False if there is no point in sending another."""
        try:
            async with asyncio.timeout(LEAVE_SECONDS if leaving else self._lease_seconds):
                await self._send_heartbeat(leaving=leaving)
            self._trouble.recovered()
        except StoreLost as error:
            self._deadline = 0.0
            self._on_lost(error)
            return False
        except Exception as error:
            # The next one may succeed. Until then, the fence is closing.
            self._trouble.say(error)
        return True

    async def _send_heartbeat(self, *, leaving: bool) -> None:
        sent = self._clock()
        presence = self._make_presence(leaving)
        answer = await self._engine.beat(presence)
        # This comes first: no step may start under a lease that this answer reports as lost.
        self._on_answer(presence, answer)
        self._deadline = sent + self._lease_seconds * MARGIN
