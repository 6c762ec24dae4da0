"""Wake: parents whose children have all arrived and whom nobody told, because the one who should have has died.

Must not be needed in the ordinary course: whoever commits the last child's end wakes the parent. So it looks when a
worker was lost, when the lead changes, and else rarely.
"""

import asyncio

from holdfast.core.model import State, WaitKind, Where
from holdfast.engines.contract import Engine
from holdfast.jobs import Jobs
from holdfast.jobs.family import wake_if_in

RARELY_SECONDS = 60.0


class Wake:
    """Looks for parents to wake."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._jobs = Jobs(engine)
        self._next = 0.0

    def soon(self) -> None:
        """Somebody was lost: look at the next occasion."""
        self._next = 0.0

    async def parents(self, by: str) -> int:
        """Wake parents whose children are all in, if it is time to look; answer how many."""
        loop = asyncio.get_running_loop()
        if loop.time() < self._next:
            return 0
        self._next = loop.time() + RARELY_SECONDS
        woken = 0
        async for job in self._jobs.walk(Where(states=(State.PENDING,))):
            if any(wait.kind is WaitKind.CHILDREN or wait.is_unreadable for wait in job.waits):
                woken += await wake_if_in(self._engine, job.id, by=by)
        return woken
