"""Wake: jobs that wait for the end of others and whom nobody told of it, because the one who should have has died.

Must not be needed in the ordinary course: whoever commits an end wakes the parent, and those who wait for it. So it
looks when a worker was lost, when the lead changes, and else rarely. It looks at some jobs in each round, so that the
rest of the upkeep goes on meanwhile.
"""

import asyncio

from holdfast.core.model import State, WaitKind, Where
from holdfast.engines.contract import Engine
from holdfast.jobs.consequences import wake_if_children_ended
from holdfast.jobs.waiters import awaited_job, break_circle, waiters_of, wake_if_ended

RARELY_SECONDS = 60.0
"""How often it looks through all that waits, without a reason."""

PARENTS_A_ROUND = 500
"""How many waiting jobs are looked at in one round of the upkeep. The next round goes on behind them."""


class Wake:
    """Looks for parents to wake."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._next = 0.0
        self._after = ""
        """The last job that was looked at, while a walk over all that wait is under way."""
        self._again = False

    def hurry(self) -> None:
        """Somebody was lost: look at the next occasion. A walk that is under way is finished first, then begun anew."""
        self._next, self._again = 0.0, self._again or bool(self._after)

    async def wake_waiting(self, by: str) -> int:
        """Wake who waits for jobs that are all in, or for each other, if it is time to look; answer how many."""
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
