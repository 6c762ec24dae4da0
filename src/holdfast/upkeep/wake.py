"""Wakes jobs that wait for the end of others and were never woken, because the worker that should have done it died.

Must not be needed normally: whoever commits an end wakes the parent and every other job that waits for it. So it looks
after a worker was lost, when the leader changes, and otherwise rarely. It checks some jobs in each round, so that it
doesn't delay the rest of the upkeep.
"""

import asyncio

from holdfast.core.model import State, WaitKind, Where
from holdfast.engines.contract import Engine
from holdfast.jobs.consequences import wake_if_children_ended
from holdfast.jobs.waiters import awaited_job, break_circle, waiters_of, wake_if_ended

RARELY_SECONDS = 60.0
"""How often to check all waiting jobs without a reason."""

PARENTS_A_ROUND = 500
"""How many waiting jobs one round of the upkeep checks. The next round continues after them."""


class Wake:
    """Looks for parents to wake."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._next = 0.0
        self._after = ""
        """The last job that was checked, while a pass over all waiting jobs is running."""
        self._again = False

    def hurry(self) -> None:
        """A worker was lost: check in the next round. A running pass finishes first, then a new one starts."""
        self._next, self._again = 0.0, self._again or bool(self._after)

    async def wake_waiting(self, by: str) -> int:
        """If it is time, wake jobs whose awaited jobs have all ended, or that wait for each other; return how many."""
        loop = asyncio.get_running_loop()
        if loop.time() < self._next:
            return 0
        page = await self._engine.find(Where(states=(State.PENDING,)), self._after, PARENTS_A_ROUND)
        if len(page) == PARENTS_A_ROUND:
            self._after = page[-1].id
        else:
            self._next = 0.0 if self._again else loop.time() + RARELY_SECONDS
            self._after, self._again = "", False
        woken = 0
        for job in page:
            if any(wait.kind is WaitKind.CHILDREN or wait.is_unreadable for wait in job.waits):
                woken += await wake_if_children_ended(self._engine, job.id, by=by)
            if any(awaited_job(wait) for wait in job.waits):
                woken += await wake_if_ended(self._engine, job, by=by)
                if job.parent is not None or waiters_of(job):
                    woken += await break_circle(self._engine, job.id, by=by)
        return woken
