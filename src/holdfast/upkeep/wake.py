"""Wake: jobs that wait for the end of others and whom nobody told of it, because the one who should have has died.

Must not be needed in the ordinary course: whoever commits an end wakes the parent, and those who wait for it. So it
looks when a worker was lost, when the lead changes, and else rarely.
"""

import asyncio

from holdfast.core.model import State, WaitKind, Where
from holdfast.engines.contract import Engine
from holdfast.jobs import Jobs
from holdfast.jobs.family import wake_if_in
from holdfast.jobs.waiters import awaited, break_circle, waiters_of, wake_if_ended

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
        """Wake who waits for jobs that are all in, or for each other, if it is time to look; answer how many."""
        loop = asyncio.get_running_loop()
        if loop.time() < self._next:
            return 0
        self._next = loop.time() + RARELY_SECONDS
        woken = 0
        async for job in self._jobs.walk(Where(states=(State.PENDING,))):
            if any(wait.kind is WaitKind.CHILDREN or wait.is_unreadable for wait in job.waits):
                woken += await wake_if_in(self._engine, job.id, by=by)
            if any(awaited(wait) for wait in job.waits):
                woken += await wake_if_ended(self._engine, job, by=by)
                if job.parent is not None or waiters_of(job):
                    woken += await break_circle(self._engine, job.id, by=by)
        return woken
