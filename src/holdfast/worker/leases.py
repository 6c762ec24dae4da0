"""A worker's hold on its jobs: one beat for all of them, from its own thread, and the fence for when it can't beat.

Must not run jobs. A busy event loop or a blocked handler can't stop the beat; a store that can't be reached does, and
then the fence closes by the worker's own monotonic clock, before anybody else may take its jobs over.
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
"""News of progress are told with a beat at most this often."""

MARGIN = 0.8
"""The fence closes at this part of the lease: clocks differ a little, and a step needs a moment to be stopped."""

STALLED = (
    "this process did not run for %.0f s (a call held the interpreter's lock, or the process or machine was stopped); "
    "others may have taken its jobs; run a step that makes such a call with isolate='process'"
)
"""What a worker is told that was silent for longer than its fence allows, although nothing was wrong with its store."""

LEAVE_SECONDS = 5.0
"""How long to wait for the last beat when a worker ends."""


class Leases:
    """Beats for a worker. `told` is called on the beat's thread with each presence and the answer to it, `lost` once
    when the store is not the one that we wrote to: no beat will ever be answered again. While nothing `runs` the
    worker's jobs there is no beat: a worker whose event loop has ended must not seem to live.

    A simulation passes in its own clock and its own way to `spawn` the beats.
    """

    def __init__(
        self,
        engine: Engine,
        presence: Callable[[bool], Presence],
        told: Callable[[Presence, Beat], None],
        lost: Callable[[StoreLost], None],
        *,
        beat_seconds: float,
        lease_seconds: float,
        runs: Callable[[], bool] = lambda: True,
        clock: Callable[[], float] = time.monotonic,
        spawn: Spawn = own_thread,
    ) -> None:
        self._engine = engine
        self._presence = presence
        self._told = told
        self._lost = lost
        self._beat_seconds = beat_seconds
        self._lease_seconds = lease_seconds
        self._runs = runs
        self._clock = clock
        self._spawn = spawn
        self._deadline = 0.0
        self._join: Join | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._nudged: asyncio.Event | None = None
        self._soon = False
        self._hurry = False
        self._stopping = False
        self._leaving = True
        self._trouble = LogOnce(log, "a beat was not answered", "beats are answered again")

    def may_start(self) -> bool:
        """Whether a new step may start: our last beat that was answered is young enough."""
        return self._clock() < self._deadline

    def until(self) -> float:
        """Until when a new step may start, by our clock."""
        return self._deadline

    def is_over(self, since: float) -> bool:
        """Whether a lease that was taken then, by our clock, may be over if nothing has renewed it."""
        return self._clock() > since + self._lease_seconds * MARGIN

    async def start(self) -> None:
        """Beat once, here, so that trouble is told to whoever starts the worker; then go on in the thread."""
        await self._beat(leaving=False)
        self._join = self._spawn("holdfast-beat", self._beats)

    def news(self) -> None:
        """There is progress to tell: beat within a moment. From any thread."""
        if not self._soon:
            self._wake()

    def hurry(self) -> None:
        """Beat at once. From any thread."""
        self._hurry = True
        self._wake()

    def _wake(self) -> None:
        self._soon = True
        loop, nudged = self._loop, self._nudged
        if loop is not None and nudged is not None:
            try:
                loop.call_soon_threadsafe(nudged.set)
            except RuntimeError:  # it is ending
                pass

    async def stop(self, *, leaving: bool = True) -> None:
        """End the beats, and take leave of the others; or not, so that they see that we are gone."""
        self._stopping, self._leaving = True, leaving
        self.hurry()
        if self._join is not None:
            await self._join(LEAVE_SECONDS)

    async def _beats(self) -> None:
        self._nudged = nudged = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        last = self._clock()
        while not self._stopping:
            left = last + self._pause() - self._clock()
            if left > 0 and not self._hurry:
                waits_from = self._clock()
                try:
                    async with asyncio.timeout(left):
                        await nudged.wait()
                except TimeoutError:
                    pass
                nudged.clear()
                # This thread does nothing but beat: if it wakes so late, nothing of this process could run.
                stalled = self._clock() - waits_from - left
                if stalled > self._beat_seconds and not self.may_start():
                    log.warning(STALLED, stalled + left)
                continue
            self._hurry = self._soon = False
            last = self._clock()
            if self._runs() and not await self._try_beat(leaving=False):
                return
        if self._leaving:
            await self._try_beat(leaving=True)

    def _pause(self) -> float:
        return min(SOON_SECONDS, self._beat_seconds) if self._soon else self._beat_seconds

    async def _try_beat(self, *, leaving: bool) -> bool:
        """Beat; False where there is no use in trying again."""
        try:
            async with asyncio.timeout(LEAVE_SECONDS if leaving else self._lease_seconds):
                await self._beat(leaving=leaving)
            self._trouble.recovered()
        except StoreLost as error:
            self._deadline = 0.0
            self._lost(error)
            return False
        except Exception as error:
            # The next beat may come through; until then the fence is closing.
            self._trouble.say(error)
        return True

    async def _beat(self, *, leaving: bool) -> None:
        sent = self._clock()
        presence = self._presence(leaving)
        answer = await self._engine.beat(presence)
        # Told first: no step may start under a lease of which this answer says that it is lost.
        self._told(presence, answer)
        self._deadline = sent + self._lease_seconds * MARGIN
