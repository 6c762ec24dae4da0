"""A worker's hold on its jobs: one beat for all of them, from its own thread, and the fence for when it can't beat.

Must not run jobs. A busy event loop or a blocked handler can't stop the beat; a store that can't be reached does, and
then the fence closes by the worker's own monotonic clock, before anybody else may take its jobs over.
"""

import asyncio
import threading
import time
from collections.abc import Callable

from holdfast.core.errors import HoldfastError
from holdfast.core.model import Beat, Presence
from holdfast.engines.contract import Engine

SOON_SECONDS = 0.5
"""News of progress are told with a beat at most this often."""

MARGIN = 0.8
"""The fence closes at this part of the lease: clocks differ a little, and a step needs a moment to be stopped."""


class Leases:
    """Beats for a worker. `told` is called on the beat's thread with each answer, `lost` once when the fence closes."""

    def __init__(
        self,
        engine: Engine,
        presence: Callable[[], Presence],
        told: Callable[[Beat], None],
        *,
        beat_seconds: float,
        lease_seconds: float,
    ) -> None:
        self._engine = engine
        self._presence = presence
        self._told = told
        self._beat_seconds = beat_seconds
        self._lease_seconds = lease_seconds
        self._deadline = 0.0
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._nudged: asyncio.Event | None = None
        self._hurry = False
        self._stopping = False

    def may_start(self) -> bool:
        """Whether a new step may start: our last beat that was answered is young enough."""
        return time.monotonic() < self._deadline

    async def start(self) -> None:
        """Beat once, here, so that trouble is told to whoever starts the worker; then go on in the thread."""
        await self._beat()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._beats()), name="holdfast-beat", daemon=True)
        self._thread.start()

    def nudge(self, *, hurry: bool) -> None:
        """Beat sooner: at once, or within a moment when it is only about progress. From any thread."""
        if hurry:
            self._hurry = True
        elif self._soon:
            return
        loop, nudged = self._loop, self._nudged
        if loop is not None and nudged is not None:
            self._soon = True
            try:
                loop.call_soon_threadsafe(nudged.set)
            except RuntimeError:  # it is ending
                pass

    _soon = False

    async def stop(self) -> None:
        """End the beats, and take leave of the others."""
        self._stopping = True
        self.nudge(hurry=True)
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, 5.0)

    async def _beats(self) -> None:
        self._loop, self._nudged = asyncio.get_running_loop(), asyncio.Event()
        last = time.monotonic()
        while not self._stopping:
            try:
                await asyncio.wait_for(self._nudged.wait(), max(0.0, last + self._beat_seconds - time.monotonic()))
                if not self._hurry:
                    await asyncio.sleep(max(0.0, last + SOON_SECONDS - time.monotonic()))
            except TimeoutError:
                pass
            self._nudged.clear()
            self._hurry = self._soon = False
            last = time.monotonic()
            try:
                await self._beat()
            except HoldfastError:
                # The store is away. The next beat may come through; until then the fence is closing.
                pass

    async def _beat(self) -> None:
        sent = time.monotonic()
        answer = await self._engine.beat(self._presence())
        self._deadline = sent + self._lease_seconds * MARGIN
        self._told(answer)
